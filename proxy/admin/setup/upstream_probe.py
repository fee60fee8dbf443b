"""“Test this upstream”: send two small requests to an upstream, and show its responses as text.

Also the button that resets what refusals have shown about the models of an upstream.
"""

from collections.abc import Sequence

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from proxy.admin.core.number_format import duration
from proxy.admin.core.pages import page
from proxy.admin.transcript.truncation import printable
from proxy.audit_log import Action, record
from proxy.models import ModelLesson, RouteTarget, Upstream
from proxy.permissions.write_permissions import may_forget_lessons, may_probe
from proxy.secrets import ConfigError
from proxy.upstream_probe import QUESTIONS, Finding, probe
from translator.errors import TranslatorError


class ProbeForm(forms.Form):
    model = forms.CharField(
        max_length=200,
        label="Model",
        help_text="As the upstream names it.",
        widget=forms.TextInput(attrs={"list": "models", "autocomplete": "off"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def probe_view(request: HttpRequest, upstream_id: int) -> HttpResponse:
    """Show the form (GET), or send the test requests and show the responses (POST)."""
    if not may_probe(request.user):
        raise PermissionDenied
    upstream = Upstream.objects.filter(pk=upstream_id).first()
    if upstream is None:
        raise Http404("no such upstream")
    named = RouteTarget.objects.filter(upstream=upstream).exclude(model__in=("", "*"))
    models = sorted(set(named.values_list("model", flat=True)))[:50]
    form = ProbeForm(request.POST or None, initial={"model": models[0] if models else ""})
    findings: Sequence[Finding] = ()
    error = ""  # why no request was sent
    if request.method == "POST" and form.is_valid():
        model = form.cleaned_data["model"]
        try:
            findings = probe(upstream, model)
        except ValidationError as exc:
            error = " ".join(exc.messages)
        except (ConfigError, TranslatorError, LookupError, ValueError) as exc:
            error = str(exc)
        results = "; ".join(
            f"{finding.question.name} {finding.status or 'no response'} in "
            f"{duration(finding.total_ms)}: {'passed' if finding.ok else 'failed'}"
            for finding in findings
        )
        detail = f"model {model[:80]}: {results or f'no request sent, {error[:200]}'}"
        record(Action.TEST, upstream, detail=detail)
    return page(
        request,
        "upstream/probe",
        f"Test {upstream}",
        upstream=upstream,
        form=form,
        models=models,
        questions=QUESTIONS,
        findings=[
            {
                "title": finding.question.title,
                "ok": finding.ok,
                "result": printable(finding.summary),
                "answer": printable(finding.answer),
                "status": finding.status,
                "head": duration(finding.head_ms),
                "first": duration(finding.first_ms),
                "total": duration(finding.total_ms),
                "reads": finding.reads,
                "sides": [
                    ("Request", printable(finding.sent)),
                    ("Response", printable(finding.received)),
                    ("Response to a client", printable(finding.client_events)),
                ],
            }
            for finding in findings
        ],
        error=error,
    )


@require_POST
def forget_view(request: HttpRequest, upstream_id: int) -> HttpResponse:
    """Delete the lessons of an upstream; every gateway process follows within a second."""
    upstream = Upstream.objects.filter(pk=upstream_id).first()
    if not request.user.has_perm("proxy.view_upstream"):
        raise PermissionDenied
    if upstream is None:
        raise Http404("no such upstream")
    if not may_forget_lessons(request.user, upstream):
        raise PermissionDenied
    with transaction.atomic():
        count, _ = ModelLesson.objects.filter(upstream=upstream).delete()
        record(Action.CHANGE, upstream, detail=f"{count} findings about its models were reset")
    messages.success(request, "Reset: the next refusal is learnt anew.")
    return HttpResponseRedirect(reverse("admin:proxy_upstream_change", args=[upstream.pk]))
