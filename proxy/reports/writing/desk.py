"""Rows are written at the admin's own desk: its permissions, its forms, its lines in the log.

A row that comes over the API is filled into the very form that a person fills in. So there is one
rule for what is right, who may, and how it is told; here JSON becomes a form, and nothing else.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, models, transaction
from django.views.decorators.debug import sensitive_variables
from rest_framework.request import Request

from proxy.complaints import MANAGED
from proxy.reports.exports import Conflict

Values = Mapping[str, Any]
"""By the name of the model's field; what is not there stays as it is. A list of mappings is the
row's lines (of a route: its targets), which replace those that are there."""

TAKEN: Final = "another row with these values was made at the same moment"


class Wrong(Exception):
    """The form is not right; ``complaints`` by the name of its field."""

    def __init__(self, complaints: Mapping[str, list[str]]) -> None:
        super().__init__(*complaints)
        self.complaints = complaints


def desk_of(model: type[models.Model]) -> Any:
    """The admin class of a model."""
    return admin.site.get_model_admin(model)


def add(request: Request, model: type[models.Model], values: Values) -> Any:
    """A new row. Raises Wrong, PermissionDenied or Conflict."""
    if not desk_of(model).has_add_permission(request):
        raise PermissionDenied
    return _save(request, model, None, values)


def change(request: Request, row: models.Model, values: Values) -> Any:
    """The row with other values. Raises as ``add`` does."""
    refuse_managed(row)
    if not desk_of(type(row)).has_change_permission(request, row):
        raise PermissionDenied
    return _save(request, type(row), row, values)


def remove(request: Request, row: models.Model) -> None:
    """Take a row away with its lines; what others refer to stays, and they are told."""
    refuse_managed(row)
    desk = desk_of(type(row))
    if not desk.has_delete_permission(request, row):
        raise PermissionDenied
    lines = {inline.model for inline in desk.inlines}
    others = [
        f"{count} {_called(relation.related_model, count)}"
        for relation in row._meta.related_objects  # noqa: SLF001 - documented
        if relation.related_model not in lines
        and (count := _count(relation.related_model, **{relation.field.name: row}))
    ]
    if others:
        raise Conflict(f"{row} is in use by {', '.join(others)}; take these away first")
    try:
        with transaction.atomic():
            desk.log_deletions(request, [row])
            desk.delete_model(request, row)
    except IntegrityError:  # ProtectedError is one
        raise Conflict(f"{row} came into use at the same moment") from None


def _count(model: Any, **condition: Any) -> int:
    return int(model.objects.filter(**condition).count())


def _called(model: Any, count: int) -> str:
    names = model._meta  # noqa: SLF001 - documented
    return str(names.verbose_name if count == 1 else names.verbose_name_plural)


def refuse_managed(row: Any) -> None:
    if getattr(row, "managed", False):
        raise Conflict(MANAGED.format(row))


@sensitive_variables("values", "form")
def _save(
    request: Request, model: type[models.Model], row: models.Model | None, values: Values
) -> Any:
    desk, is_new = desk_of(model), row is None
    made = desk.get_form(request, row, change=not is_new)
    form = made(_filled(made(instance=row), values), instance=row)
    right = form.is_valid()
    new = desk.save_form(request, form, change=not is_new) if right else form.instance
    formsets = list(_formsets(desk, request, row, new, values))
    if not right or not forms.all_valid(formsets):
        raise Wrong(_complaints(form, formsets))
    try:
        with transaction.atomic():
            desk.save_model(request, new, form, not is_new)
            desk.save_related(request, form, formsets, not is_new)
            told = desk.construct_change_message(request, form, formsets, is_new)
            (desk.log_addition if is_new else desk.log_change)(request, new, told)
    except IntegrityError:
        raise Conflict(TAKEN) from None
    return new


def _filled(form: Any, values: Values, before: str = "") -> dict[str, Any]:
    """What a browser would send of a form: its fields as they are, but for ``values``."""
    sent: dict[str, Any] = {}
    for name, field in form.fields.items():
        initial = form.get_initial_for_field(field, name)
        sent |= _sent(f"{before}{name}", field, values.get(name, initial))
        if field.show_hidden_initial:  # of values that are made up anew each time
            sent |= _sent(f"initial-{before}{name}", field, initial)
    return sent


def _sent(name: str, field: Any, value: Any) -> dict[str, Any]:
    value = field.prepare_value(value)
    if isinstance(field.widget, forms.MultiWidget):
        parts = field.widget.decompress(value) or ()
        return {f"{name}_{number}": part for number, part in enumerate(parts)}
    return {name: value}


def _formsets(
    desk: Any, request: Request, row: models.Model | None, new: models.Model, values: Values
) -> Iterable[Any]:
    """The forms of the row's lines. New lines replace the old ones, or nothing changes."""
    wanted = {name: lines for name, lines in values.items() if _are_lines(lines)}
    for made, inline in desk.get_formsets_with_inlines(request, row):
        prefix = made.get_default_prefix()
        blank = made(instance=row or new, prefix=prefix, queryset=inline.get_queryset(request))
        lines = wanted.pop(prefix, None)
        if lines is not None and not (made.can_delete and inline.has_add_permission(request, row)):
            raise PermissionDenied
        old = {"DELETE": True} if lines is not None else {}
        sent: dict[str, Any] = {}
        for form in blank.initial_forms:
            sent |= _filled(form, old, f"{form.prefix}-")
        start = len(blank.initial_forms)
        for number, line in enumerate(lines or (), start):
            sent |= _filled(blank.empty_form, line, f"{prefix}-{number}-")
        sent[f"{prefix}-INITIAL_FORMS"] = start
        sent[f"{prefix}-TOTAL_FORMS"] = start + len(lines or ())
        seen = inline.get_queryset(request)
        yield made(data=sent, instance=new, prefix=prefix, queryset=seen)
    if wanted:
        raise PermissionDenied


def _are_lines(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _complaints(form: Any, formsets: Iterable[Any]) -> dict[str, list[str]]:
    """By field; what concerns none of them, or several, under DRF's own name."""
    found = {
        "non_field_errors" if name == "__all__" else name: list(map(str, complaints))
        for name, complaints in form.errors.items()
    }
    for formset in formsets:
        told = [*formset.non_form_errors()]
        told += [text for errors in formset.errors for texts in errors.values() for text in texts]
        if told:
            found[formset.prefix] = list(map(str, told))
    return found
