"""Upstreams, routes with their targets, and prices. Rows from bridge.toml are read-only."""

from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from proxy.admin.core.base import Inline, ManagedAdmin, ModelForm
from proxy.admin.dashboard import queries
from proxy.models import Price, Route, RouteTarget, Upstream
from proxy.permissions.row_permissions import Reader, reader_of_user, visible_routes

from .upstream_form import UpstreamForm, secret_location

UNPRICED_DAYS: Final = 30
MAX_UNPRICED: Final = 20


if TYPE_CHECKING:  # generic only in django-stubs
    Targets = forms.BaseInlineFormSet[RouteTarget, Route, forms.ModelForm[RouteTarget]]
else:
    Targets = forms.BaseInlineFormSet


@admin.register(Upstream)
class UpstreamAdmin(ManagedAdmin):
    """Upstreams. They receive API keys and conversations (T12), so only superusers change them."""

    form = UpstreamForm
    list_display = ("name", "dialect", "address", "secret_display", "enabled", "from_file")
    list_filter = ("dialect", "enabled")
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "dialect", "base_url", "secret", "new_secret", "enabled")}),
        (
            "Behavior",
            {
                "fields": (
                    "profile",
                    "capabilities",
                    "timeouts",
                    "extra_body",
                    "when_client_leaves",
                    "connection_reuse",
                    "allow_http",
                )
            },
        ),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show users with view permission only where the secret is stored, not its form field."""
        if obj is None or self.has_change_permission(request, obj):
            return self.fieldsets
        first = ("name", "dialect", "base_url", "secret_display", "enabled")
        return ((None, {"fields": first}), *self.fieldsets[1:])

    @admin.display(description="address", ordering="base_url")
    def address(self, obj: Upstream) -> str:
        return obj.base_url

    @admin.display(description="secret")
    def secret_display(self, obj: Upstream) -> str:
        return secret_location(obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), "secret_display")


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


class TargetInline(Inline):
    model = RouteTarget
    formset = AtLeastOneTarget
    extra = 0
    fields = ("position", "upstream", "model", "weight")

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
    list_display = ("model", "team_display", "targets_display", "position", "from_file")
    list_select_related = ("team",)
    search_fields = ("model",)
    fields = ("model", "team", "position")
    inlines = (TargetInline,)

    def get_queryset(self, request: HttpRequest) -> Any:
        routes = visible_routes(reader_of_user(request.user))
        return routes.prefetch_related("targets__upstream")

    @admin.display(description="targets")
    def targets_display(self, obj: Route) -> str:
        return ", then ".join(
            f"{target.upstream} → {target.model or 'the same name'}" for target in obj.targets.all()
        )

    @admin.display(description="team", ordering="team__name")
    def team_display(self, obj: Route) -> str:
        return str(obj.team) if obj.team else "all teams"


class PriceForm(ModelForm):
    class Meta:
        labels: ClassVar = {
            name: f"{label}, $ per million tokens"
            for name, label in (
                ("input", "Input"),
                ("output", "Output"),
                ("cache_read", "Cache read"),
                ("cache_write_5m", "Cache write, 5 minutes"),
                ("cache_write_1h", "Cache write, 1 hour"),
            )
        }
        help_texts: ClassVar = {
            "upstream": "Empty: any upstream with this model.",
            "model": "The model name that the upstream gets.",
            "since": "First day of the price, in UTC.",
            **dict.fromkeys(
                ("cache_read", "cache_write_5m", "cache_write_1h"), "Empty: charged as input."
            ),
            "source": "Where the price was published, and when it was read.",
        }


@admin.register(Price)
class PriceAdmin(ManagedAdmin):
    """Prices are never changed: a new price is a new row that starts on a later day."""

    form = PriceForm

    list_display = (
        "model",
        "upstream_display",
        "since",
        "per_input",
        "per_output",
        "per_cached",
        "from_file",
    )
    list_select_related = ("upstream",)
    list_filter = ("upstream",)
    search_fields = ("model",)
    list_before_template = "admin/proxy/price/unpriced.html"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        models = unpriced_models(reader_of_user(request.user))
        return super().changelist_view(
            request, {"unpriced_models": models, **(extra_context or {})}
        )

    @admin.display(description="upstream", ordering="upstream__name")
    def upstream_display(self, obj: Price) -> str:
        return str(obj.upstream) if obj.upstream else "any"

    @admin.display(description="input, $ per million", ordering="input")
    def per_input(self, obj: Price) -> str:
        return _amount(obj.input)

    @admin.display(description="output", ordering="output")
    def per_output(self, obj: Price) -> str:
        return _amount(obj.output)

    @admin.display(description="cache read", ordering="cache_read")
    def per_cached(self, obj: Price) -> str:
        return "as input" if obj.cache_read is None else _amount(obj.cache_read)


def _amount(usd: Decimal) -> str:
    """Format dollars with two to six decimals, without trailing zeros after the second one."""
    whole, _, part = f"{usd:,.6f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def unpriced_models(reader: Reader) -> list[dict[str, Any]]:
    """Return the models without a price used in the last 30 days, with links to add a price."""
    found = queries.unpriced_in(reader, queries.last_days(UNPRICED_DAYS))[:MAX_UNPRICED]
    ids = dict(Upstream.objects.values_list("name", "pk"))
    requests = reverse("admin:proxy_exchange_changelist")
    return [
        {
            "model": model,
            "upstream": upstream,
            "count": count,
            "add_url": f"{reverse('admin:proxy_price_add')}?"
            + urlencode({"model": model, "upstream": ids.get(upstream, "")}),
            "url": f"{requests}?"
            + urlencode({"cost": "none", "via": upstream, "within": f"{UNPRICED_DAYS}d"}),
        }
        for (model, upstream), count in found
    ]
