"""The button that resets what refusals have shown about the models of an upstream."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from proxy.audit_log import Action, record
from proxy.models import ModelLesson, Upstream
from proxy.permissions.write_permissions import may_forget_lessons


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
