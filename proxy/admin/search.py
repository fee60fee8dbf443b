"""The search page, and the search box in the header, which leads to the right page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.exchange_text import session_url, short_id
from proxy.admin.core.pages import (
    READ_TRANSCRIPT,
    page,
    query_string,
    require_reader,
    team_names,
    whole_number,
)
from proxy.admin.core.time_zone import midnight, parse_day
from proxy.admin.transcript.truncation import printable
from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.ledger.search.query import MAX_QUERY, InvalidQuery
from proxy.ledger.search.search import Page, SearchTooSlow
from proxy.models.ledger_names import person_ids
from proxy.permissions.row_permissions import (
    Reader,
    visible_exchanges,
    visible_keys,
)
from proxy.transcript_search import Filters, off_reason, search_transcripts

PER_PAGE: Final = 20
MAX_VALUE: Final = 200  # characters of a filter
MAX_DIGITS: Final = 18  # of a position
TOO_SLOW: Final = "The search took too long and was stopped. Use a longer or rarer word."
LOOKUP_S: Final = 0.5
RECENT: Final = timedelta(days=30)
"""The search box recognizes the name of a user or model that had a request in this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchForm:
    """The parameters of the page. Days begin in the viewer's zone; ``until`` is the last day."""

    text: str
    filters: Filters
    since: str
    until: str
    below: int | None

    def url(self, **changes: Any) -> str:
        one = self.filters
        values = {
            "q": self.text, "team": one.team, "key": one.key, "user": one.user, "model": one.model,
            "since": self.since, "until": self.until,
        }  # fmt: skip
        return query_string(values | changes)


def parse_form(query: Mapping[str, str]) -> SearchForm:
    """Parse the query string; an invalid filter is left out."""

    def value(name: str) -> str:
        return query.get(name, "")[:MAX_VALUE].replace("\x00", "").strip()

    since, until = parse_day(value("since")), parse_day(value("until"))
    return SearchForm(
        text=query.get("q", "").strip(),
        filters=Filters(
            team=value("team"),
            key=value("key"),
            user=value("user"),
            model=value("model"),
            since=midnight(since) if since else None,
            until=midnight(until + timedelta(days=1)) if until else None,
        ),
        since=since.isoformat() if since else "",
        until=until.isoformat() if until else "",
        below=whole_number(query.get("below", ""), MAX_DIGITS),
    )


@require_GET
def search_view(request: HttpRequest) -> HttpResponse:
    """Show the texts that match, newest first, with filters beside them."""
    reader = require_reader(request, READ_TRANSCRIPT)
    form = parse_form(request.GET.dict())
    found, error, reason = Page((), None), "", off_reason()
    if form.text and not reason:
        try:
            found = search_transcripts(
                reader, form.text, form.filters, limit=PER_PAGE, below=form.below
            )
        except InvalidQuery as exc:
            error = f"{str(exc)[:1].upper()}{str(exc)[1:]}."
        except SearchTooSlow:
            error = TOO_SLOW
    return page(
        request,
        "search/page",
        "Search",
        form=form,
        off_reason=reason,
        error=error,
        results=[
            {
                "row": result.exchange,
                "kind": result.kind,
                "fragments": [(printable(one.text), one.matched) for one in result.fragments],
                "cut_before": result.is_cut_before,
                "cut_after": result.is_cut_after,
                "url": reverse("admin:proxy_exchange_change", args=[result.exchange.pk]),
                "session_url": session_url(result.exchange.session_id)
                if result.exchange.session_id
                else "",
                "session": short_id(result.exchange.session_id),
            }
            for result in found.results
        ],
        teams=team_names(reader),
        first=form.url() if form.below is not None else "",
        older=form.url(below=found.next_position) if found.next_position is not None else "",
        max_query=MAX_QUERY,
    )


@require_GET
def go_view(request: HttpRequest) -> HttpResponse:
    """Redirect to the page of what the search box contains: an id, a name, or words to search.

    Only requests and keys that the user may see are looked up, so the page that follows does not
    show whether others exist.
    """
    reader = require_reader(request)
    text = request.GET.get("q", "").replace("\x00", "").strip()[: MAX_QUERY + 1]
    may_search = request.user.has_perm(READ_TRANSCRIPT)
    return HttpResponseRedirect(_target(reader, text, may_search=may_search))


def _target(reader: Reader, text: str, *, may_search: bool) -> str:
    rows = visible_exchanges(reader)
    requests = reverse("admin:proxy_exchange_changelist")
    if text and rows.filter(pk=text).exists():
        return reverse("admin:proxy_exchange_change", args=[text])
    if text and rows.filter(session_id=text).exists():
        return session_url(text)
    keys = list(visible_keys(reader).filter(name=text).values_list("pk", flat=True)[:2])
    if len(keys) == 1:
        return f"{requests}?{urlencode({'key_id': keys[0]})}"
    for column, values in (("user", person_ids(text)), ("model_requested", [text])):
        if text and _is_recent(reader, column, values):
            return f"{requests}?{urlencode({column: text})}"
    page_url = reverse("admin:proxy_search") if may_search and not keys else requests
    return f"{page_url}?{urlencode({'q': text})}"


def _is_recent(reader: Reader, column: str, values: Sequence[str]) -> bool:
    """Return whether a visible request of the last days has one of these values."""
    rows = visible_exchanges(reader).filter(created__gte=now() - RECENT)
    try:
        with with_query_timeout(LOOKUP_S):
            return rows.filter(**{f"{column}__in": values}).exists()
    except QueryTimeout:
        return False
