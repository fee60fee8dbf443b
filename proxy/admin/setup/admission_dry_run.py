"""The admission dry run of a gateway key: the result of each check for a hypothetical request."""

from typing import Any, Final

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from proxy.admin.core.number_format import UNKNOWN, dollars
from proxy.admin.core.pages import page
from proxy.admission_checks import (
    CheckFinding,
    CheckResult,
    HypotheticalRequest,
    NotServing,
    run_admission_dry_run,
)
from proxy.permissions.row_permissions import as_seen_by, reader_of_user, visible_keys

MAX_TOKENS: Final = 10**9
CHECK_TITLES: Final = {
    "revoked": "Key and user active",
    "expired": "Key not expired",
    "address": "Client address",
    "scope": "Scope messages",
    "team_models": "Models of the team",
    "key_models": "Models of the key",
    "route": "Route",
    "price": "Price",
    "concurrency": "Concurrent requests",
    "rpm": "Requests per minute",
    "tpm": "Input tokens per minute",
    "budget": "Budget",
}
RESULTS: Final = {
    CheckResult.PASSES: ("passes", "good"),
    CheckResult.REFUSES: ("rejects", "bad"),
    CheckResult.WARNS: ("warns", "left"),
    CheckResult.UNKNOWN: ("unknown", "other"),
}
"""Result -> its text, and the tone of its badge."""


class DryRunForm(forms.Form):
    model = forms.CharField(max_length=200, label="Model", initial="claude-sonnet-5")
    input_tokens = forms.IntegerField(
        min_value=0, max_value=MAX_TOKENS, label="Input tokens", initial=1000
    )
    max_tokens = forms.IntegerField(
        min_value=1, max_value=MAX_TOKENS, label="max_tokens", initial=1000
    )
    ip = forms.GenericIPAddressField(required=False, label="Client address")
    client = forms.CharField(required=False, max_length=200, label="Client and version")


@require_safe
def dry_run_view(request: HttpRequest, key_id: int) -> HttpResponse:
    """Show what each admission check would decide; send, count and reserve nothing."""
    reader = reader_of_user(request.user)
    key = visible_keys(reader).filter(pk=key_id).first()
    if key is None or not request.user.has_perm("proxy.view_apikey"):
        raise Http404("no such key")
    form = DryRunForm(request.GET if "model" in request.GET else None)
    result, error = None, ""
    if form.is_valid():
        try:
            found = run_admission_dry_run(HypotheticalRequest(key_id=key.pk, **form.cleaned_data))
        except NotServing as exc:
            error = str(exc)
        else:
            seen = as_seen_by(reader, key, found)
            refused = seen.refused_by
            result = {
                "rejected": refused and f"{refused.check.status} {refused.check.error}",
                "rejected_by": refused and f"{_title(refused)}, {refused.subject}",
                "route": seen.route or UNKNOWN,
                "targets": ", ".join(seen.targets) or UNKNOWN,
                "worst_case": dollars(seen.worst_case),
                "checks": [_check_row(finding) for finding in seen.findings],
            }
    title = f"Admission dry run of {key}"
    return page(request, "apikey/dry_run", title, key=key, form=form, error=error, result=result)


def _title(finding: CheckFinding) -> str:
    return (
        CHECK_TITLES.get(finding.check.name) or CHECK_TITLES[finding.check.name.rpartition("_")[2]]
    )


def _check_row(finding: CheckFinding) -> dict[str, Any]:
    def number(count: int | None) -> str:
        if count is None:
            return UNKNOWN
        return dollars(count) if finding.money else f"{count:,}"

    period = f" per {finding.period}" if finding.period else ""
    result, tone = RESULTS[finding.result]
    return {
        "title": _title(finding),
        "of": finding.subject,
        "result": result,
        "tone": tone,
        "limit": f"{number(finding.limit)}{period}" if finding.limit is not None else UNKNOWN,
        "used": number(finding.used),
        "left": number(finding.left),
        "request": number(finding.takes),
        "resets": finding.resets,
    }
