"""Base classes of model admins: some are read-only, the others check what users write."""

import json
from typing import TYPE_CHECKING, Any, Final

import unfold.fields
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Field, ForeignKey, JSONField, Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from proxy.decode_errors import MANAGED
from proxy.models.setup.columns import SEALED, TypedJSON
from proxy.permissions.write_permissions import ADD, CHANGE, DELETE, choices, faults, may_write

from .json_column_field import StorableJson
from .lookup_limits import CheckedAutocomplete, CheckedModelAdmin
from .typed_fields import explain_unreadable_fields, typed_formfield

if TYPE_CHECKING:  # the theme's classes have no types; their Django base classes do
    TabularInline = admin.TabularInline[Any, Any]
    ModelForm = forms.ModelForm[Any]
else:
    from django.forms import ModelForm
    from unfold.admin import TabularInline

__all__ = [
    "ChecksWrites",
    "Inline",
    "ManagedAdmin",
    "ModelForm",
    "ReadOnlyAdmin",
    "refuse_managed",
]


MESSAGE_LENGTH: Final = 600
SECRET_FIELDS: Final = (
    "password", "password1", "password2", "new_secret", "pending_secret", "url"
)  # fmt: skip
"""Form fields whose values are never written into a message. The URL of
a webhook may contain a token."""


def plain_json(data: Any, encoder: Any) -> SafeString:
    """Return indented JSON, for a read-only field, as escaped text in a ``pre`` element."""
    text = json.dumps(data, sort_keys=True, indent=2, cls=encoder, ensure_ascii=False)
    return format_html('<pre class="mb-json">{}</pre>', text)


unfold.fields.prettify_json = plain_json
"""Replace the theme's function: its output has ``style`` attributes, which the CSP blocks."""


def _name_input(field: Any) -> None:
    """Give the input of a table's cell the name of its column: a cell has no label."""
    if field is not None:
        for widget in (field.widget, getattr(field.widget, "widget", None)):
            if widget is not None:
                widget.attrs.setdefault("aria-label", field.label)


class Inline(TabularInline):
    """A table of rows in the form of the row that they belong to."""

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> Any:
        field: Any = (
            typed_formfield(db_field)
            if isinstance(db_field, TypedJSON)
            else super().formfield_for_dbfield(db_field, request, **kwargs)
        )
        _name_input(field)
        return field


class ReadOnlyAdmin(CheckedModelAdmin):
    """A model admin that allows no user, not even a superuser, to add, change or delete a row."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def form_with_write_check(form: Any, user: Any, action: str) -> Any:
    """Return a subclass of ``form`` that rejects values which ``user`` may not write."""

    class FormWithWriteCheck(form):  # type: ignore[misc]  # mypy cannot check a base class that is a parameter
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            explain_unreadable_fields(self)

        def _post_clean(self) -> None:
            super()._post_clean()
            if self.errors:
                return
            for field, why in faults(user, action, type(self.instance), self.instance):
                self.add_error(field if field in self.fields else None, why)

    return FormWithWriteCheck


class ChecksWrites(CheckedModelAdmin):
    """A model admin that permits the writes that ``write_permissions`` permits."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may_write(request.user, ADD, self.model) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        allowed = may_write(request.user, CHANGE, self.model, obj)
        return allowed and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        allowed = may_write(request.user, DELETE, self.model, obj)
        return allowed and super().has_delete_permission(request, obj)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        return form_with_write_check(form, request.user, CHANGE if change else ADD)

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Return the form for the editable columns of the change list (``list_editable``)."""
        form: Any = form_with_write_check(
            super().get_changelist_form(request, **kwargs), request.user, CHANGE
        )

        class FormInCells(form):  # type: ignore[misc]  # as above
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                for field in self.fields.values():
                    _name_input(field)

        return FormInCells

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> Any:
        if isinstance(db_field, TypedJSON):
            return typed_formfield(db_field)
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

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Return Django's message, which names the changed fields, with old and new values."""
        message = super().construct_change_message(request, form, formsets, add)
        lines = [] if add else _differences(form)
        for formset in formsets or ():
            for inline in formset.initial_forms:
                if inline not in formset.deleted_forms:
                    lines += [f"{inline.instance}: {line}" for line in _differences(inline)]
        request.change_lines = lines  # type: ignore[attr-defined]  # read by message_user
        if not lines:
            return message
        return [*message, {"changed": {"name": "values", "object": "", "fields": lines}}]

    def message_user(
        self,
        request: HttpRequest,
        message: Any,
        level: Any = messages.INFO,
        *more: Any,
        **by_name: Any,
    ) -> None:
        """Add the changed fields, with old and new values, to the message after a change."""
        lines = getattr(request, "change_lines", None)
        if level == messages.SUCCESS and lines:
            text = "; ".join(lines)
            text = text if len(text) <= MESSAGE_LENGTH else f"{text[: MESSAGE_LENGTH - 1]}…"
            message = format_html("{} Changed: {}", message, text)
        super().message_user(request, message, level, *more, **by_name)


class ManagedAdmin(ChecksWrites):
    """A model admin whose rows are read-only if bridge.toml, the configuration file, has them."""

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
        """Raise PermissionDenied for a POST to an object that bridge.toml declares.

        The error message states this reason. Users without the change permission get Django's 403
        instead.
        """
        if request.method == "POST" and object_id and self.has_change_permission(request):
            refuse_managed(self.get_object(request, unquote(object_id)))

    @admin.display(description="set in")
    def from_file(self, obj: Any) -> str:
        return "bridge.toml" if obj.managed else "admin"


def refuse_managed(obj: Any) -> None:
    """Raise PermissionDenied if bridge.toml declares the object; the message states the reason."""
    if _is_managed(obj):
        raise PermissionDenied(MANAGED.format(obj))


def _is_managed(obj: Any) -> bool:
    return obj is not None and bool(getattr(obj, "managed", False))


def _differences(form: Any) -> list[str]:
    """Return ``field: before → after`` for each changed field, without the values of secrets."""
    lines = [
        f"{name}: changed".replace("pending_secret", "new_secret")
        if name in SECRET_FIELDS
        else f"{name}: {_short(form.initial.get(name))} → {_short(form.cleaned_data.get(name))}"
        for name in form.changed_data
    ]
    return list(dict.fromkeys(lines))


def _short(value: object) -> str:
    if isinstance(value, dict) and SEALED in value:
        return "a stored secret"
    has_models = isinstance(value, QuerySet | list | tuple) and any(
        isinstance(entry, Model) for entry in value
    )
    text = ", ".join(sorted(map(str, value))) if has_models else str(value)  # type: ignore[call-overload]  # mypy does not narrow ``value`` by ``has_models``
    return text if len(text) <= 120 else f"{text[:119]}…"
