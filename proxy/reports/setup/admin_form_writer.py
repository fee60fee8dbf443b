"""Write database rows through the forms of Django's admin.

The API and the admin therefore have the same permissions, validation and log entries. This module
only converts values to form data.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, models, transaction
from django.views.decorators.debug import sensitive_variables
from rest_framework.request import Request

from proxy.decode_errors import MANAGED
from proxy.reports.core.exception_handler import Conflict

Values = Mapping[str, Any]
"""Values by model field name. A field that is absent does not change. A list of mappings contains
inline rows (such as the targets of a route), which replace all existing inline rows."""

TAKEN: Final = "another request created a row with these values at the same time"


class FormInvalid(Exception):
    """The admin form is invalid; ``errors`` has the error messages by field name."""

    def __init__(self, errors: Mapping[str, list[str]]) -> None:
        super().__init__(*errors)
        self.errors = errors


def model_admin_for(model: type[models.Model]) -> Any:
    """Return the ModelAdmin that is registered for a model."""
    return admin.site.get_model_admin(model)


def add(request: Request, model: type[models.Model], values: Values) -> Any:
    """Create a row of ``model``. Raise FormInvalid, PermissionDenied or Conflict."""
    if not model_admin_for(model).has_add_permission(request):
        raise PermissionDenied
    return _save(request, model, None, values)


def change(request: Request, row: models.Model, values: Values) -> Any:
    """Change an existing row. Raise FormInvalid, PermissionDenied or Conflict."""
    refuse_managed(row)
    if not model_admin_for(type(row)).has_change_permission(request, row):
        raise PermissionDenied
    return _save(request, type(row), row, values)


def remove(request: Request, row: models.Model) -> None:
    """Delete a row with its inline rows.

    Raise PermissionDenied, or Conflict if other rows refer to the row.
    """
    refuse_managed(row)
    model_admin = model_admin_for(type(row))
    if not model_admin.has_delete_permission(request, row):
        raise PermissionDenied
    inline_models = {inline.model for inline in model_admin.inlines}
    references = [
        f"{count} {_verbose_name(relation.related_model, count)}"
        for relation in row._meta.related_objects  # noqa: SLF001 - documented by Django
        if relation.related_model not in inline_models
        and (count := _count(relation.related_model, **{relation.field.name: row}))
    ]
    if references:
        raise Conflict(f"{row} is in use by {', '.join(references)}; delete these first")
    try:
        with transaction.atomic():
            model_admin.log_deletions(request, [row])
            model_admin.delete_model(request, row)
    except IntegrityError:  # the base class of ProtectedError
        raise Conflict(f"another request started to use {row} at the same time") from None


def _count(model: Any, **condition: Any) -> int:
    return int(model.objects.filter(**condition).count())


def _verbose_name(model: Any, count: int) -> str:
    names = model._meta  # noqa: SLF001 - documented by Django
    return str(names.verbose_name if count == 1 else names.verbose_name_plural)


def refuse_managed(row: Any) -> None:
    """Raise Conflict if bridge.toml declares the row, because only the file may change it."""
    if getattr(row, "managed", False):
        raise Conflict(MANAGED.format(row))


@sensitive_variables("values", "form")
def _save(
    request: Request, model: type[models.Model], row: models.Model | None, values: Values
) -> Any:
    model_admin, is_new = model_admin_for(model), row is None
    form_class = model_admin.get_form(request, row, change=not is_new)
    form = form_class(_form_data(form_class(instance=row), values), instance=row)
    is_valid = form.is_valid()
    new = model_admin.save_form(request, form, change=not is_new) if is_valid else form.instance
    formsets = list(_formsets(model_admin, request, row, new, values))
    if not is_valid or not forms.all_valid(formsets):
        raise FormInvalid(_form_errors(form, formsets))
    try:
        with transaction.atomic():
            model_admin.save_model(request, new, form, not is_new)
            model_admin.save_related(request, form, formsets, not is_new)
            messages = model_admin.construct_change_message(request, form, formsets, is_new)
            (model_admin.log_addition if is_new else model_admin.log_change)(request, new, messages)
    except IntegrityError:
        raise Conflict(TAKEN) from None
    return new


def _form_data(form: Any, values: Values, prefix: str = "") -> dict[str, Any]:
    """Return the form data that a browser would send: initial values, overridden by ``values``."""
    data: dict[str, Any] = {}
    for name, field in form.fields.items():
        initial = form.get_initial_for_field(field, name)
        data |= _field_data(f"{prefix}{name}", field, values.get(name, initial))
        if field.show_hidden_initial:  # the default is computed for each form
            data |= _field_data(f"initial-{prefix}{name}", field, initial)
    return data


def _field_data(name: str, field: Any, value: Any) -> dict[str, Any]:
    value = field.prepare_value(value)
    if isinstance(field.widget, forms.MultiWidget):
        parts = field.widget.decompress(value) or ()
        return {f"{name}_{number}": part for number, part in enumerate(parts)}
    return {name: value}


def _formsets(
    model_admin: Any, request: Request, row: models.Model | None, new: models.Model, values: Values
) -> Iterable[Any]:
    """Yield the formsets of the inline rows. Given inline rows replace all existing ones."""
    inline_values_by_prefix = {
        name: inline_values
        for name, inline_values in values.items()
        if _are_inline_rows(inline_values)
    }
    for formset_class, inline in model_admin.get_formsets_with_inlines(request, row):
        prefix = formset_class.get_default_prefix()
        unbound = formset_class(
            instance=row or new, prefix=prefix, queryset=inline.get_queryset(request)
        )
        inline_values = inline_values_by_prefix.pop(prefix, None)
        if inline_values is not None and not (
            formset_class.can_delete and inline.has_add_permission(request, row)
        ):
            raise PermissionDenied
        deleted = {"DELETE": True} if inline_values is not None else {}
        data: dict[str, Any] = {}
        for form in unbound.initial_forms:
            data |= _form_data(form, deleted, f"{form.prefix}-")
        start = len(unbound.initial_forms)
        for number, inline_row in enumerate(inline_values or (), start):
            data |= _form_data(unbound.empty_form, inline_row, f"{prefix}-{number}-")
        data[f"{prefix}-INITIAL_FORMS"] = start
        data[f"{prefix}-TOTAL_FORMS"] = start + len(inline_values or ())
        queryset = inline.get_queryset(request)
        yield formset_class(data=data, instance=new, prefix=prefix, queryset=queryset)
    if inline_values_by_prefix:
        raise PermissionDenied


def _are_inline_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _form_errors(form: Any, formsets: Iterable[Any]) -> dict[str, list[str]]:
    """Return the errors by field name; errors of the whole form are ``non_field_errors``."""
    errors_by_field = {
        "non_field_errors" if name == "__all__" else name: list(map(str, messages))
        for name, messages in form.errors.items()
    }
    for formset in formsets:
        messages = [*formset.non_form_errors()]
        messages += [
            text for errors in formset.errors for texts in errors.values() for text in texts
        ]
        if messages:
            errors_by_field[formset.prefix] = list(map(str, messages))
    return errors_by_field
