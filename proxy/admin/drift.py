"""The drift radar: names as they first appeared, and what upstreams may be told of them."""

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from proxy.models import Drift, DriftKind, Exchange, PolicyAction, PolicyKind, UpstreamPolicy

from .base import ReadOnlyAdmin, ToldChanges

JUDGED: Final = {True: "known", False: "not known", None: "not judged"}
POLICED: Final = {kind: PolicyKind(kind) for kind in DriftKind if kind in PolicyKind.values}


@admin.register(Drift)
class DriftAdmin(ReadOnlyAdmin):
    """Newest names first: what a release of a client or an upstream brought along."""

    list_display = ("name", "kind", "judged", "requests", "first_seen", "last_seen", "begun_by",
                    "policy")  # fmt: skip
    list_display_links = None
    heading = "Drift"
    list_filter = ("kind", "known", "first_seen")
    search_fields = ("name",)
    ordering = ("-first_seen", "kind", "name")
    show_full_result_count = False

    @admin.display(description="this version", ordering="known")
    def judged(self, row: Drift) -> str:
        return JUDGED[row.known]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, {"title": self.heading, **(extra_context or {})})

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """What the rows of one page are shown beside, in two queries for all of them."""
        page = super().get_changelist_instance(request)
        rules = list(UpstreamPolicy.objects.all())
        named = [row.first_request for row in page.result_list if row.first_request]
        kept = set(Exchange.objects.filter(pk__in=named).values_list("pk", flat=True))
        for row in page.result_list:
            row.rules, row.is_kept = rules, row.first_request in kept
        return page

    @admin.display(description="first request")
    def begun_by(self, row: Any) -> SafeString | str:
        if not row.is_kept:
            return str(row.first_request)
        link = reverse("admin:proxy_exchange_change", args=[row.first_request])
        short = f"…{row.first_request[-6:]}"  # whole, it pushed the policies off the page
        return format_html('<a href="{}" title="{}">{}</a>', link, row.first_request, short)

    @admin.display(description="policy")
    def policy(self, row: Any) -> SafeString | str:
        kind = POLICED.get(DriftKind(row.kind))
        if kind is None:
            return ""
        for rule in row.rules:
            if rule.kind == kind and rule.covers(row.name):
                return str(PolicyAction(rule.action).label)
        query = urlencode({"kind": kind.value, "name": row.name})
        link = reverse("admin:proxy_upstreampolicy_add")
        return format_html('<a href="{}?{}">set one</a>', link, query)


@admin.register(UpstreamPolicy)
class UpstreamPolicyAdmin(ToldChanges):
    actions = None  # their bar is placed by an inline style, which our policy forbids
    list_display = ("name", "kind", "action", "whom", "position")
    list_editable = ("action", "position")
    list_filter = ("kind", "action", "upstream")
    search_fields = ("name",)
    fields = ("kind", "name", "action", "upstream", "position")

    @admin.display(description="upstream", ordering="upstream__name")
    def whom(self, row: UpstreamPolicy) -> str:
        return str(row.upstream or "every upstream")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("upstream")
