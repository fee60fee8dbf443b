"""The form "Why do you read this?", which the admin shows before another person's transcript.

A view that reads a transcript calls ``proxy.permissions.readings``, which raises ReasonRequired.
The middleware redirects to the form, and the form back to the page.
"""

from typing import Final
from urllib.parse import urlencode

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_http_methods

from proxy.admin.core.pages import READ_TRANSCRIPT, page, page_to_return_to, require_reader
from proxy.models.audit import MAX_REASON
from proxy.permissions.readings import (
    MIN_REASON,
    REMEMBERED_FOR,
    Kind,
    ReadObject,
    ReasonRequired,
    is_reason,
    remember_reason,
)

EXPLANATIONS: Final = {
    Kind.REQUEST: "Request {} is not your own.",
    Kind.SESSION: "Session {} has requests that are not your own.",
    Kind.SEARCH: "The search for {} finds texts of other people too.",
}
"""Why a reason is needed, for each kind of object that the admin has a page of."""

STORED: Final = (
    "The audit log stores your reason. The people whose text you read see it with your name. "
    "The reason is valid for {} minutes."
)
MAX_ID: Final = 200


class ReadingReasonMiddleware(MiddlewareMixin):
    """Redirect a page of the admin that needs a reason to the form that asks for it."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, ReasonRequired):
            return None
        read = exception.read
        query = {"kind": read.kind.value, "id": read.id, "next": request.get_full_path()}
        return HttpResponseRedirect(f"{reverse('admin:proxy_reading_reason')}?{urlencode(query)}")


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label="Reason",
        max_length=MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 3, "autofocus": True}),
        help_text="For example the number of a ticket, or who asked you to look.",
    )

    def clean_reason(self) -> str:
        reason: str = self.cleaned_data["reason"]
        if not is_reason(reason):
            raise forms.ValidationError(f"Write at least {MIN_REASON} letters.")
        return reason


@require_http_methods(["GET", "HEAD", "POST"])
def reading_reason_view(request: HttpRequest) -> HttpResponse:
    """Show the form (GET), or remember the reason and go back to the page (POST).

    The query has the kind and id of what is read, and the page to go back to.
    """
    require_reader(request, READ_TRANSCRIPT)
    kind, ident = request.GET.get("kind", Kind.REQUEST.value), request.GET.get("id", "")
    if kind not in EXPLANATIONS or len(ident) > MAX_ID or "\x00" in ident:
        raise Http404("there is no such page to read")
    read = ReadObject(Kind(kind), ident)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        remember_reason(request, read, form.cleaned_data["reason"])
        return HttpResponseRedirect(page_to_return_to(request))
    minutes = int(REMEMBERED_FOR.total_seconds() // 60)
    return page(
        request,
        "people/form",
        "Why do you read this?",
        form=form,
        button="Read",
        back_url=reverse("admin:index"),
        explanation=[EXPLANATIONS[read.kind].format(read.id), STORED.format(minutes)],
    )
