"""Upstreams, routes with their targets, and prices. Objects from bridge.toml are read-only."""

from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from proxy.models import Price, Route, RouteTarget, Upstream
from proxy.visibility import Reader, reader_of_user, visible_routes

from . import books
from .base import Inline, ManagedAdmin, ModelForm
from .upstream_secrets import UpstreamForm, told

LACKING_DAYS: Final = 30
MOST_LACKING: Final = 20


if TYPE_CHECKING:  # the stubs' class is generic, Django's is not
    Targets = forms.BaseInlineFormSet[RouteTarget, Route, forms.ModelForm[RouteTarget]]
else:
    Targets = forms.BaseInlineFormSet


@admin.register(Upstream)
class UpstreamAdmin(ManagedAdmin):
    """Where requests, and with them keys, are sent (T12): for superusers."""

    form = UpstreamForm
    list_display = ("name", "dialect", "address", "where_the_secret_is", "enabled", "from_file")
    list_filter = ("dialect", "enabled")
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "dialect", "base_url", "secret", "new_secret", "enabled")}),
        (
            "How it behaves",
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
        """Whoever only looks is told where the secret is, and nothing of it."""
        if obj is None or self.has_change_permission(request, obj):
            return self.fieldsets
        first = ("name", "dialect", "base_url", "where_the_secret_is", "enabled")
        return ((None, {"fields": first}), *self.fieldsets[1:])

    @admin.display(description="address", ordering="base_url")
    def address(self, obj: Upstream) -> str:
        return obj.base_url

    @admin.display(description="secret")
    def where_the_secret_is(self, obj: Upstream) -> str:
        return told(obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), "where_the_secret_is")


class AtLeastOneTarget(Targets):
    """A route to nowhere answers nobody."""

    def clean(self) -> None:
        super().clean()
        kept = [
            form
            for form in self.forms
            if form not in self.deleted_forms and form.cleaned_data.get("upstream")
        ]
        if not any(self.errors) and not kept:
            raise forms.ValidationError(
                f"route {self.instance.model!r} leads to no upstream; name at least one target"
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
    list_display = ("model", "whose", "goes_to", "position", "from_file")
    list_select_related = ("team",)
    search_fields = ("model",)
    fields = ("model", "team", "position")
    inlines = (TargetInline,)

    def get_queryset(self, request: HttpRequest) -> Any:
        routes = visible_routes(reader_of_user(request.user))
        return routes.prefetch_related("targets__upstream")

    @admin.display(description="leads to, in order")
    def goes_to(self, obj: Route) -> str:
        return ", then ".join(
            f"{target.upstream} → {target.model or 'the same name'}" for target in obj.targets.all()
        )

    @admin.display(description="for", ordering="team__name")
    def whose(self, obj: Route) -> str:
        return f"team {obj.team}" if obj.team else "every team"


class PriceForm(ModelForm):
    class Meta:
        labels: ClassVar = {
            name: f"{words}, $ per million tokens"
            for name, words in (
                ("input", "Input"),
                ("output", "Output"),
                ("cache_read", "Cache read"),
                ("cache_write_5m", "Cache write, 5 minutes"),
                ("cache_write_1h", "Cache write, 1 hour"),
            )
        }
        help_texts: ClassVar = {
            "upstream": "Empty: any that offers the model.",
            "model": "As the upstream is asked for it.",
            "since": "Its first day, in UTC.",
            **dict.fromkeys(
                ("cache_read", "cache_write_5m", "cache_write_1h"), "Empty: charged as input."
            ),
            "source": "Where it was read, and when.",
        }


@admin.register(Price)
class PriceAdmin(ManagedAdmin):
    """Dated, never overwritten: a price that was used stays as it was; a new one gets a new day."""

    form = PriceForm

    list_display = ("model", "where", "since", "per_input", "per_output", "per_cached", "from_file")
    list_select_related = ("upstream",)
    list_filter = ("upstream",)
    search_fields = ("model",)
    list_before_template = "admin/proxy/price/lacking.html"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        lacking = lacking_prices(reader_of_user(request.user))
        return super().changelist_view(request, {"lacking": lacking, **(extra_context or {})})

    @admin.display(description="upstream", ordering="upstream__name")
    def where(self, obj: Price) -> str:
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
    """Two places at least, and no zeros beyond."""
    whole, _, part = f"{usd:,.6f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def lacking_prices(reader: Reader) -> list[dict[str, Any]]:
    """Models that answered in the last 30 days and have no price, with a way to give them one."""
    found = books.unpriced_in(reader, books.last_days(LACKING_DAYS))[:MOST_LACKING]
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
            + urlencode({"cost": "none", "via": upstream, "within": f"{LACKING_DAYS}d"}),
        }
        for (model, upstream), count in found
    ]
