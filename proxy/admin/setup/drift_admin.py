"""The list of drift (new names of fields, betas, blocks, events or clients), and its policies.

A policy decides whether the gateway sends such a name to an upstream.
"""

from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from proxy.admin.core.model_admin import ChecksWrites, ReadOnlyAdmin
from proxy.models import Drift, DriftKind, Exchange, PolicyAction, PolicyKind, UpstreamPolicy

KNOWN_LABELS: Final = {True: "known", False: "not known", None: "not checked"}
POLICY_KINDS: Final = {kind: PolicyKind(kind) for kind in DriftKind if kind in PolicyKind.values}


@admin.register(Drift)
class DriftAdmin(ReadOnlyAdmin):
    """Names that a new release of a client or an upstream added to the API, newest first."""

    empty_text = "Names of the protocol appear here when a request has them for the first time."
    list_display = ("name", "kind", "support", "requests", "first_seen", "last_seen",
                    "first_request_link", "policy")  # fmt: skip
    list_display_links = None
    heading = "Drift"
    list_filter = ("kind", "known", "first_seen")
    search_fields = ("name",)
    ordering = ("-first_seen", "kind", "name")
    show_full_result_count = False

    @admin.display(description="this version", ordering="known")
    def support(self, row: Drift) -> str:
        return KNOWN_LABELS[row.known]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Load the policies and first requests of all rows of the page with two more queries."""
        page = super().get_changelist_instance(request)
        policies = list(UpstreamPolicy.objects.all())
        ids = [row.first_request for row in page.result_list if row.first_request]
        existing = set(Exchange.objects.filter(pk__in=ids).values_list("pk", flat=True))
        for row in page.result_list:
            row.policies = policies
            row.has_first_request = row.first_request in existing
        return page

    @admin.display(description="first request")
    def first_request_link(self, row: Any) -> SafeString | str:
        if not row.has_first_request:
            return str(row.first_request)
        link = reverse("admin:proxy_exchange_change", args=[row.first_request])
        short = f"…{row.first_request[-6:]}"  # the whole request id would make the table too wide
        return format_html('<a href="{}" title="{}">{}</a>', link, row.first_request, short)

    @admin.display(description="policy")
    def policy(self, row: Any) -> SafeString | str:
        kind = POLICY_KINDS.get(DriftKind(row.kind))
        if kind is None:
            return ""
        for policy in row.policies:
            if policy.kind == kind and policy.covers(row.name):
                return str(PolicyAction(policy.action).label)
        query = urlencode({"kind": kind.value, "name": row.name})
        link = reverse("admin:proxy_upstreampolicy_add")
        return format_html('<a href="{}?{}">add one</a>', link, query)


@admin.register(UpstreamPolicy)
class UpstreamPolicyAdmin(ChecksWrites):
    empty_text = "Without a policy, a name is sent if the API format of the upstream supports it."
    list_display = ("name", "kind", "action", "upstream_display", "position")
    list_editable = ("action", "position")
    list_filter = ("kind", "action", "upstream")
    search_fields = ("name",)
    fields = ("kind", "name", "action", "upstream", "position")

    @admin.display(description="upstream", ordering="upstream__name")
    def upstream_display(self, row: UpstreamPolicy) -> str:
        return str(row.upstream or "every upstream")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("upstream")
