"""Users and groups: Django's own forms, for superusers only, with the differences in the log.

Whoever may change users may make themselves a superuser, so no group grants it. Who leads teams
sees the people of these.
"""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from proxy.models import Identity
from proxy.write_permissions import choices

from .base import Inline, ToldChanges

if TYPE_CHECKING:  # the stubs' class is generic, Django's is not
    Users = UserAdmin[User]
else:
    Users = UserAdmin


class IdentityInline(Inline):
    """Whom the sign-in provider knows as this user."""

    model = Identity
    extra = 0
    fields = ("issuer", "subject")


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class PeopleAdmin(ToldChanges, Users):
    actions = None
    form = UserChangeForm
    add_form = UserCreationForm
    add_fieldsets = UserAdmin.add_fieldsets  # the theme's class has an empty one, and comes first
    change_password_form = AdminPasswordChangeForm
    filter_horizontal = ()  # a plain choice of several: its two boxes cannot be named for readers
    list_display = ("username", "email", "is_active", "is_staff", "is_superuser", "last_login")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return choices(request.user, super().get_queryset(request))

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if obj is None else (IdentityInline,)


@admin.register(Group)
class GroupsAdmin(ToldChanges, GroupAdmin):
    actions = None
    filter_horizontal = ()
