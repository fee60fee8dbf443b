"""Prices in the admin, and the models that were used without a price."""

from decimal import Decimal
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from proxy.admin.core.model_admin import ManagedAdmin, ModelForm
from proxy.admin.dashboard import queries
from proxy.models import Price, Upstream
from proxy.permissions.row_permissions import Reader, reader_of_user

UNPRICED_DAYS: Final = 30
MAX_UNPRICED: Final = 20


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
            "service_tier": "The tier in the usage, such as priority, flex or batch; "
            "empty: the standard tier.",
            "speed": "fast: the price of Anthropic's fast mode; empty: the standard speed.",
            "inference_geo": "The region in the usage, such as us; empty: global.",
            "since": "First day of the price, in UTC.",
            **dict.fromkeys(
                ("cache_read", "cache_write_5m", "cache_write_1h"), "Empty: charged as input."
            ),
            "source": "Where the price was published, and when it was read.",
        }


@admin.register(Price)
class PriceAdmin(ManagedAdmin):
    """Prices are never changed: a new price is a new row that starts on a later day."""

    empty_text = "Without a price, the cost of a model is unknown, and budgets do not count it."
    form = PriceForm

    list_display = (
        "model",
        "upstream_display",
        "variant_display",
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

    @admin.display(description="tier, speed, region")
    def variant_display(self, obj: Price) -> str:
        return ", ".join(obj.variant) or "standard"

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
