"""Users and groups: Django's forms, for superusers only; the audit log has old and new values.

A user who may change users could become a superuser, so no group of the gateway grants that
permission. A team lead may view the users of the team.
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from proxy.admin.core.model_admin import ChecksWrites, Inline
from proxy.models import Identity
from proxy.permissions.team_grants import granted_teams
from proxy.permissions.usernames import TAKEN, is_taken
from proxy.permissions.write_permissions import choices

if TYPE_CHECKING:  # generic only in django-stubs
    Users = UserAdmin[User]
else:
    Users = UserAdmin


class NewUserForm(UserCreationForm):  # type: ignore[misc]  # the theme has no types
    def clean_username(self) -> str:
        name: str = super().clean_username()
        if is_taken(name):
            raise ValidationError(TAKEN)
        return name


class ChangedUserForm(UserChangeForm):  # type: ignore[misc]  # the theme has no types
    def clean_username(self) -> str:
        name: str = self.cleaned_data["username"]
        if name != self.initial.get("username") and is_taken(name):
            raise ValidationError(TAKEN)
        return name


class IdentityInline(Inline):
    """The OpenID Connect identities (issuer and subject) of this user."""

    model = Identity
    extra = 0
    fields = ("issuer", "subject")


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class PeopleAdmin(ChecksWrites, Users):
    change_form_template = "admin/proxy/user/change_form.html"
    form = ChangedUserForm
    add_form = NewUserForm
    add_fieldsets = UserAdmin.add_fieldsets  # the theme's class, first in the MRO, has none
    change_password_form = AdminPasswordChangeForm
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Personal info", {"fields": ("first_name", "last_name", "email")}),
        (
            "Permissions",
            {
                "fields": (
                    "is_active", "is_staff", "is_superuser", "groups", "teams", "user_permissions",
                )
            },
        ),
        ("Important dates", {"fields": ("last_login", "date_joined")}),
    )  # fmt: skip
    readonly_fields = ("teams",)
    filter_horizontal = ()  # the two boxes of filter_horizontal have no accessible names
    list_display = (
        "username", "email", "is_active", "is_staff", "is_superuser", "last_login", "readings",
    )  # fmt: skip

    @admin.display(description="teams")
    def teams(self, user: User) -> str:
        """Return in which teams the user's permissions count."""
        teams = granted_teams(user)
        if not teams:
            return "no team: add a group team:<name>, or team:* for all teams"
        return "all teams" if teams == ["*"] else ", ".join(teams)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return choices(request.user, super().get_queryset(request))

    @admin.display(description="transcripts")
    def readings(self, user: User) -> SafeString:
        """Link to the audit log: who read this user's transcripts in the last 7 days."""
        query = urlencode({"did": "readings", "subject": user.username, "within": "7d"})
        url = f"{reverse('admin:proxy_auditentry_changelist')}?{query}"
        return format_html('<a class="mb-link" href="{}">who read them</a>', url)

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if obj is None else (IdentityInline,)


@admin.register(Group)
class GroupsAdmin(ChecksWrites, GroupAdmin):
    filter_horizontal = ()
