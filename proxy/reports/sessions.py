"""Sessions: all requests of one conversation as one row, and one session with its requests."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.db.models import Count, Max, Min, Q, QuerySet, Sum
from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import Exchange, State
from proxy.visibility import Reader, visible_exchanges

from .access import IsKnown
from .answers import Export, Row, columns_of
from .base import ReportView
from .parameters import PageParameters, ReportParameters, SpanParameters, Values
from .request_filters import filtered
from .requests import cursor_at, place_in
from .rows import request_row
from .sums import usd

AT_ONCE: Final = 500
"""Sessions of a file whose models are asked for together."""


class SessionRow(serializers.Serializer[Any]):
    session_id = serializers.CharField()
    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # DRF takes fields off the class
    agents = serializers.IntegerField(help_text="Sub-agents that took part.")
    models = serializers.ListField(child=serializers.CharField())
    team = serializers.CharField()
    key = serializers.CharField()
    user = serializers.CharField()
    started_at = serializers.CharField()
    last_at = serializers.CharField()
    input_tokens = serializers.IntegerField(allow_null=True)
    cache_read_input_tokens = serializers.IntegerField(allow_null=True)
    cache_write_5m_tokens = serializers.IntegerField(allow_null=True)
    cache_write_1h_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    cost_usd = serializers.CharField(allow_null=True)
    unpriced_requests = serializers.IntegerField()


class SessionPage(serializers.Serializer[Any]):
    data = SessionRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)


class SessionParameters(SpanParameters, PageParameters):
    """Sessions with a request in the stretch; last active first."""

    session = Values()


class SessionsView(ReportView):
    """Sessions: turns, agents, models, cost and span of each."""

    parameters = SessionParameters
    permission_classes = (IsKnown,)

    @extend_schema(parameters=[SessionParameters], responses=SessionPage)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        if asked["format"] != "json":
            return self.rows_answer(asked, "sessions", *every_session(self.reader, asked))
        rows = filtered(visible_exchanges(self.reader), asked)
        limit = asked["limit"]
        end = place_in(asked["page"]) if asked["page"] else None
        page = list(islice(latest(rows, end, limit + 1), limit + 1))
        more = len(page) > limit
        shown = list(sessions_of(rows.filter(session_id__in=page[:limit])))
        last = shown[-1] if shown else None
        return Response(
            {
                "data": described(self.reader, shown),
                "has_more": more,
                "next_page": cursor_at(last["last"], last["session_id"]) if more and last else None,
            }
        )


def every_session(reader: Reader, asked: dict[str, Any]) -> Export:
    found = sessions_of(filtered(visible_exchanges(reader), asked))
    walk = found.iterator(chunk_size=AT_ONCE)
    pages = iter(lambda: list(islice(walk, AT_ONCE)), [])
    rows = (one for page in pages for one in described(reader, page))
    return rows, columns_of(SessionRow())


def described(reader: Reader, page: list[Any]) -> list[Row]:
    """The rows with their models, which takes one query a page."""
    names: dict[str, set[str]] = {}
    seen = visible_exchanges(reader).filter(session_id__in=[row["session_id"] for row in page])
    for session, model in seen.order_by().values_list("session_id", "model_requested").distinct():
        names.setdefault(session, set()).add(model)
    return [session_row(row, sorted(names.get(row["session_id"], ()))) for row in page]


def latest(
    rows: QuerySet[Exchange], after: tuple[datetime, str] | None, some: int
) -> Iterator[str]:
    """Sessions, last active first, from a place on: a walk back in time that stops with its page.

    ``some``: how many are looked at together. A session stands where its last request is, so those
    with a request later than the place were told before it.
    """
    walk = rows.exclude(session_id="").order_by("-created", "session_id")
    if after is not None:
        walk = walk.filter(created__lte=after[0])
    pairs = walk.values_list("created", "session_id").iterator(chunk_size=500)
    fresh = unique(name for _, name in pairs)
    while names := list(islice(fresh, some)):
        yield from names if after is None else _not_told(rows, names, after)


def unique(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


def _not_told(
    rows: QuerySet[Exchange], names: list[str], after: tuple[datetime, str]
) -> Iterator[str]:
    """Those that come after the place."""
    last, name = after
    later = rows.filter(session_id__in=names).order_by()
    earlier = Q(created__gt=last) | Q(created=last, session_id__lte=name)
    told = set(later.filter(earlier).values_list("session_id", flat=True).distinct())
    return (one for one in names if one not in told)


def sessions_of(rows: QuerySet[Exchange]) -> "QuerySet[Any, Any]":
    return (
        rows.exclude(session_id="")
        .order_by()
        .values("session_id")
        .annotate(
            n=Count("pk"),
            failed=Count("pk", filter=~Q(outcome__in=("completed", "client_gone", ""))),
            agents=Count("agent_id", distinct=True, filter=~Q(agent_id="")),
            a_team=Min("team"),
            a_key=Min("key_name"),
            a_user=Min("user"),
            started=Min("created"),
            last=Max("created"),
            fresh=Sum("input_tokens"),
            read=Sum("cache_read_tokens"),
            short=Sum("cache_write_5m_tokens"),
            long=Sum("cache_write_1h_tokens"),
            out=Sum("output_tokens"),
            cost=Sum("cost_nanousd"),
            unpriced=Count(
                "pk",
                filter=Q(cost_nanousd=None, state=State.CLOSED)
                & (Q(input_tokens__isnull=False) | Q(output_tokens__isnull=False)),
            ),
        )
        .order_by("-last", "session_id")
    )


def session_row(row: dict[str, Any], models: list[str]) -> Row:
    return {
        "session_id": row["session_id"],
        "requests": row["n"],
        "errors": row["failed"],
        "agents": row["agents"],
        "models": models,
        "team": row["a_team"],
        "key": row["a_key"],
        "user": row["a_user"],
        "started_at": row["started"].isoformat().replace("+00:00", "Z"),
        "last_at": row["last"].isoformat().replace("+00:00", "Z"),
        "input_tokens": row["fresh"],
        "cache_read_input_tokens": row["read"],
        "cache_write_5m_tokens": row["short"],
        "cache_write_1h_tokens": row["long"],
        "output_tokens": row["out"],
        "cost_usd": usd(row["cost"] if row["cost"] is not None or row["unpriced"] else 0),
        "unpriced_requests": row["unpriced"],
    }


class SessionView(ReportView):
    """One session and its requests, oldest first."""

    permission_classes = (IsKnown,)
    parameters = ReportParameters

    @extend_schema(responses=SessionRow)
    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        self.asked()
        rows = visible_exchanges(self.reader).filter(session_id=session_id)
        found = list(sessions_of(rows))
        if not found:
            raise Http404(f"no session {session_id[:60]!r}")
        models = rows.order_by("model_requested").values_list("model_requested", flat=True)
        requests = rows.order_by("created", "id")[:1000]
        return Response(
            {
                **session_row(found[0], list(models.distinct())),
                "data": [request_row(row) for row in requests],
            }
        )
