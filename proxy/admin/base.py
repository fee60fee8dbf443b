"""What the admin classes share: read-only windows, managed objects, an audit trail with diffs."""

import json
from typing import TYPE_CHECKING, Any, Final

import unfold.fields
from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Field, ForeignKey, JSONField, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from proxy.complaints import MANAGED
from proxy.models.routes import SEALED
from proxy.write_permissions import ADD, CHANGE, DELETE, choices, faults, may_write

from .json_fields import StorableJson
from .lookups import CheckedAutocomplete, CheckedQueries

if TYPE_CHECKING:  # the theme's classes are Django's with other widgets; only Django's have types
    Inline = admin.TabularInline[Any, Any]
    ModelForm = forms.ModelForm[Any]
else:
    from django.forms import ModelForm
    from unfold.admin import TabularInline as Inline

__all__ = [
    "Inline",
    "ManagedAdmin",
    "ModelForm",
    "ReadOnlyAdmin",
    "ToldChanges",
    "refuse_managed",
]


UNTOLD: Final = ("password", "password1", "password2", "new_secret")
"""Fields whose values are secrets."""


def plain_json(data: Any, encoder: Any) -> SafeString:
    """JSON that is only shown, as text."""
    text = json.dumps(data, sort_keys=True, indent=2, cls=encoder, ensure_ascii=False)
    return format_html('<pre class="mb-json">{}</pre>', text)


unfold.fields.prettify_json = plain_json
"""The theme's own colours it by ``style`` attributes, twice, and our policy (T26) stops each."""


class ReadOnlyAdmin(CheckedQueries):
    """A window, not a door: nobody adds, changes or deletes here, superusers included."""

    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def guarded(form: Any, user: Any, action: str) -> Any:
    """The form, which also refuses what this person may not write."""

    class Guarded(form):  # type: ignore[misc]  # Django makes each form as it is asked for
        def _post_clean(self) -> None:
            super()._post_clean()
            if self.errors:
                return
            for field, why in faults(user, action, type(self.instance), self.instance):
                self.add_error(field if field in self.fields else None, why)

    return Guarded


class ToldChanges(CheckedQueries):
    """An admin that writes what ``proxy.write_permissions`` lets a person write.

    Its log says what a field was and what it became (T43).
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may_write(request.user, ADD, self.model) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may = may_write(request.user, CHANGE, self.model, obj)
        return may and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may = may_write(request.user, DELETE, self.model, obj)
        return may and super().has_delete_permission(request, obj)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        return guarded(form, request.user, CHANGE if change else ADD)

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        """For lists whose rows are changed on the list itself."""
        return guarded(super().get_changelist_form(request, **kwargs), request.user, CHANGE)

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> Any:
        if not isinstance(db_field, JSONField):
            return super().formfield_for_dbfield(db_field, request, **kwargs)
        field: Any = super().formfield_for_dbfield(
            db_field, request, form_class=StorableJson, **kwargs
        )
        field.empty = db_field.get_default
        return field

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = CheckedAutocomplete(db_field, self.admin_site)
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if field is not None and field.queryset is not None:
            field.queryset = choices(request.user, field.queryset)
        return field

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Under the plural of its model, instead of "Select … to change"."""
        title = str(self.opts.verbose_name_plural).capitalize()
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Django's message says which fields changed; ours also from what to what."""
        message = super().construct_change_message(request, form, formsets, add)
        lines = [] if add else _differences(form)
        for formset in formsets or ():
            for inline in formset.initial_forms:
                if inline not in formset.deleted_forms:
                    lines += [f"{inline.instance}: {line}" for line in _differences(inline)]
        if not lines:
            return message
        return [*message, {"changed": {"name": "values", "object": "", "fields": lines}}]


class ManagedAdmin(ToldChanges):
    """Objects that bridge.toml declares are shown but changed only there.

    Deleting in bulk is off: it would pass by the check of each object.
    """

    actions = None

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _is_managed(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _is_managed(obj) and super().has_delete_permission(request, obj)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        self._refuse_managed(request, object_id)
        return super().changeform_view(request, object_id, form_url, extra_context)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> Any:
        self._refuse_managed(request, object_id)
        return super().delete_view(request, object_id, extra_context)

    def _refuse_managed(self, request: HttpRequest, object_id: str | None) -> None:
        """Refuse a write with its reason, to those who could do it but for the file."""
        if request.method == "POST" and object_id and self.has_change_permission(request):
            refuse_managed(self.get_object(request, unquote(object_id)))

    @admin.display(description="set in")
    def from_file(self, obj: Any) -> str:
        return "bridge.toml" if obj.managed else "admin"


def refuse_managed(obj: Any) -> None:
    """Raise PermissionDenied, with the reason, for an object that bridge.toml declares."""
    if _is_managed(obj):
        raise PermissionDenied(MANAGED.format(obj))


def _is_managed(obj: Any) -> bool:
    return obj is not None and bool(getattr(obj, "managed", False))


def _differences(form: Any) -> list[str]:
    """``field: before → after`` for what a form changed; of a secret only that it changed."""
    return [
        f"{name}: changed"
        if name in UNTOLD
        else f"{name}: {_short(form.initial.get(name))} → {_short(form.cleaned_data.get(name))}"
        for name in form.changed_data
    ]


def _short(value: object) -> str:
    if isinstance(value, dict) and SEALED in value:
        return "a stored secret"
    several = isinstance(value, QuerySet | list | tuple) and any(
        isinstance(entry, Model) for entry in value
    )
    text = ", ".join(sorted(map(str, value))) if several else str(value)  # type: ignore[call-overload]  # mypy does not follow ``several``
    return text if len(text) <= 120 else f"{text[:119]}…"
