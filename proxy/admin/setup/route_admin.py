"""Routes with their targets in the admin. Rows from bridge.toml are read-only."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from proxy.admin.core.json_column_field import raw_text
from proxy.admin.core.model_admin import Inline, ManagedAdmin
from proxy.admin.core.typed_fields import parts_of
from proxy.models import Route, RouteTarget
from proxy.models.setup.columns import Conditions, check_type
from proxy.permissions.row_permissions import visible_routes

if TYPE_CHECKING:  # generic only in django-stubs
    Targets = forms.BaseInlineFormSet[RouteTarget, Route, forms.ModelForm[RouteTarget]]
else:
    Targets = forms.BaseInlineFormSet


class AtLeastOneTarget(Targets):
    """The formset of a route's targets, which rejects a route without a target."""

    def clean(self) -> None:
        super().clean()
        targets = [
            form
            for form in self.forms
            if form not in self.deleted_forms and form.cleaned_data.get("upstream")
        ]
        if not any(self.errors) and not targets:
            raise forms.ValidationError(
                f"route {self.instance.model!r} has no target; add at least one"
            )


def conditions_text(when: Any) -> str:
    """Return the conditions in words; a value of an unexpected type as JSON."""
    if not when:
        return "every request"
    try:
        check_type(when, Conditions)
    except ValidationError:
        return str(raw_text(when))
    words = []
    for part in parts_of(Conditions):
        value = when.get(part.name)
        if isinstance(value, dict):
            words += [f"header {name}: {pattern}" for name, pattern in value.items()]
        elif value:
            words.append(f"{part.title.lower()}: {value}")
    return "; ".join(words)


class TargetInline(Inline):
    model = RouteTarget
    formset = AtLeastOneTarget
    extra = 0
    readonly_fields = ("conditions",)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Return the columns; a user who may not change the route sees its conditions in words."""
        last = "when" if self.has_change_permission(request, obj) else "conditions"
        return ("position", "upstream", "model", "weight", last)

    @admin.display(description="takes only requests with")
    def conditions(self, target: RouteTarget) -> str:
        return conditions_text(target.when)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _managed(obj) and super().has_add_permission(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _managed(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _managed(obj) and super().has_delete_permission(request, obj)


def _managed(route: Any) -> bool:
    return route is not None and bool(route.managed)


@admin.register(Route)
class RouteAdmin(ManagedAdmin):
    empty_text = (
        "A route sends the requests for a model to an upstream; without one they are rejected."
    )
    list_display = ("model", "team_display", "targets_display", "position", "from_file")
    list_select_related = ("team",)
    search_fields = ("model",)
    fields = ("model", "team", "position")
    inlines = (TargetInline,)

    def get_queryset(self, request: HttpRequest) -> Any:
        routes = visible_routes(request.user)
        return routes.prefetch_related("targets__upstream")

    @admin.display(description="targets")
    def targets_display(self, obj: Route) -> str:
        return ", then ".join(
            f"{target.upstream} → {target.model or 'the same name'}"
            + (f" ({conditions_text(target.when)})" if target.when else "")
            for target in obj.targets.all()
        )

    @admin.display(description="team", ordering="team__name")
    def team_display(self, obj: Route) -> str:
        return str(obj.team) if obj.team else "all teams"
