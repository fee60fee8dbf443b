"""GET /api/v1/outcomes/: what coding agents did, and what it cost, by session, user, team or day.

The figures come from ``SessionOutcomeDay``, joined to the usage of the same session and UTC day.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from django.db.models import Count, Q, Sum
from django.http import HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.outcomes.extraction import EDIT_KINDS
from proxy.ledger.posting.outcomes import COUNTS
from proxy.models import UsageBySessionDay
from proxy.money import usd
from proxy.permissions.row_permissions import Reader, visible_rows
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import column_values, dimension_value, order_of, shown_rows
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import Choice, Number, PageParameters, Values
from proxy.reports.core.references import KeyId
from proxy.reports.core.rendering import (
    Row,
    column_names,
    decode_cursor,
    encode_cursor,
    invalid_cursor,
)
from proxy.reports.core.time_ranges import DAY, InvalidTimeRange, load_zone, parse_instant
from proxy.times import rfc3339

from .rollup_queries import refreshed_at

GROUPS: Final[Mapping[str, str]] = {
    "day": "start",
    "team": "team",
    "user": "user",
    "key": "key_id",
    "key_id": "key_id",
    "client": "client_name",
    "session": "session_id",
    "repository": "outcome__repository",
    "branch": "outcome__branch",
}
"""Name of the dimension in the API -> its column in ``UsageBySessionDay``."""
FILTERS: Final = tuple(name for name in GROUPS if name != "day")
MAX_GROUPS: Final = 4
MAX_DAYS: Final = 400
DEFAULT_DAYS: Final = 30
MAX_OFFSET: Final = 10**9

REPORTED, DERIVED, MISSING = "reported", "derived", "missing"
SOURCES: Final[Mapping[str, str]] = {
    "edits_accepted": DERIVED,
    "edits_rejected": DERIVED,
    "edits_failed": DERIVED,
    "files_edited": DERIVED,
    "lines_added": DERIVED,
    "lines_removed": DERIVED,
    "commands_run": DERIVED,
    "commands_failed": REPORTED,
    "commands_rejected": DERIVED,
    "test_runs": DERIVED,
    "test_runs_passed": DERIVED,
    "test_runs_failed": DERIVED,
    "commits": REPORTED,
    "commit_lines_added": REPORTED,
    "commit_lines_removed": REPORTED,
    "pull_requests": REPORTED,
    "cost_per_commit_usd": DERIVED,
}
"""Figure -> its source. Reported: the agent or git states it. Derived: the gateway computes it."""
RESULTS: Final = ("accepted", "rejected", "failed")
BY_TOOL: Final = tuple(f"{kind}_{result}" for kind in EDIT_KINDS for result in RESULTS)


def outcome_sums(
    reader: Reader,
    start: datetime,
    end: datetime,
    groups: Sequence[str],
    condition: Q | None = None,
) -> Any:
    """Return a queryset with a row of sums for each group, of the UTC days in this time range.

    Sums of outcomes are null in a group without a row of outcomes.
    """
    rows = UsageBySessionDay.objects.filter(
        visible_rows(reader), condition or Q(), start__gte=start, start__lt=end, requests__gt=0
    )
    columns = [GROUPS[name] for name in groups]
    sums = {f"sum_{name}": Sum(f"outcome__{name}") for name in COUNTS}
    usage = {f"sum_{name}": Sum(name) for name in ("requests", "cost_nanousd", "unpriced")}
    sessions = Count("session_id", distinct=True, filter=~Q(session_id=""))
    if not columns:
        return [rows.aggregate(**sums, **usage, sessions=sessions)]
    found = rows.order_by().values(*columns).annotate(**sums, **usage, sessions=sessions)
    return found.order_by(*map(order_of, groups, columns), *columns)


def outcome_rows(groups: Sequence[str], found: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield the rows of a report for rows of ``outcome_sums``."""
    columns = [GROUPS[name] for name in groups]
    for key, one in shown_rows(groups, columns, found):
        yield outcome_row(dict(zip(groups, key, strict=True)), one)


def outcome_row(dimensions: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
    """Return the row of a report for one row of ``outcome_sums`` with these dimensions.

    Figures of transcripts are null if no request of the group was read.
    """
    counts = {name: found[f"sum_{name}"] or 0 for name in COUNTS}
    requests, cost = found["sum_requests"] or 0, found["sum_cost_nanousd"] or 0
    unpriced = found["sum_unpriced"] or 0
    known_cost = None if unpriced and not cost else cost
    figures = _figures(counts, known_cost) if counts["requests_read"] else dict.fromkeys(SOURCES)
    is_read = counts["requests_read"] > 0
    return {
        **{name: _dimension(name, value) for name, value in dimensions.items()},
        "sessions": found["sessions"],
        "requests": requests,
        "requests_read": min(requests, counts["requests_read"]),
        "cost_usd": usd(known_cost),
        "unpriced_requests": unpriced,
        **figures,
        **{name: counts[name] if is_read else None for name in BY_TOOL},
        "edits_without_lines": counts["edits_without_lines"] if is_read else None,
        "commits_derived": counts["commits_derived"] if is_read else None,
        "commits_without_lines": counts["commits_without_lines"] if is_read else None,
        "is_partial": counts["requests_read"] < requests or counts["edits_without_lines"] > 0,
        "sources": _sources(figures, counts),
    }


def _dimension(name: str, value: Any) -> Any:
    if name == "day":
        return f"{value:%Y-%m-%d}"
    return dimension_value(name, value) if value != "" else None


def _figures(counts: Mapping[str, int], cost: int | None) -> Row:
    edits = {result: sum(counts[f"{kind}_{result}"] for kind in EDIT_KINDS) for result in RESULTS}
    commits = counts["commits_reported"] + counts["commits_derived"]
    no_lines = 0 < edits["accepted"] == counts["edits_without_lines"]
    no_commit_lines = 0 < commits == counts["commits_without_lines"]
    return {
        **{f"edits_{result}": count for result, count in edits.items()},
        "files_edited": counts["files_edited"],
        "lines_added": None if no_lines else counts["lines_added"],
        "lines_removed": None if no_lines else counts["lines_removed"],
        **{name: counts[name] for name in SOURCES if name.startswith(("commands", "test_runs"))},
        "commits": commits,
        "commit_lines_added": None if no_commit_lines else counts["commit_lines_added"],
        "commit_lines_removed": None if no_commit_lines else counts["commit_lines_removed"],
        "pull_requests": counts["pull_requests"],
        "cost_per_commit_usd": usd(cost // commits) if commits and cost is not None else None,
    }


def _sources(figures: Row, counts: Mapping[str, int]) -> Row:
    sources = {
        name: MISSING if figures[name] is None else source for name, source in SOURCES.items()
    }
    if figures["commits"] is not None and counts["commits_derived"]:
        sources["commits"] = DERIVED
    return sources


class OutcomeSources(serializers.Serializer[Any]):
    """The source of each figure."""

    def get_fields(self) -> dict[str, Any]:
        choices = (REPORTED, DERIVED, MISSING)
        return {name: serializers.ChoiceField(choices=choices) for name in SOURCES}


class OutcomeRow(serializers.Serializer[Any]):
    """One group. Of the dimensions, only those in ``group_by`` are present."""

    sessions = serializers.IntegerField()
    requests = serializers.IntegerField(help_text="Finished requests.")
    requests_read = serializers.IntegerField(
        help_text="Requests whose stored transcripts were read; the others have no outcomes."
    )
    cost_usd = serializers.CharField(allow_null=True, help_text="Cost of all requests.")
    unpriced_requests = serializers.IntegerField()
    is_partial = serializers.BooleanField(
        help_text="True if requests were not read, or edits have unknown lines."
    )
    sources = OutcomeSources()

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        names = (
            *(name for name in SOURCES if not name.endswith("_usd")),
            *BY_TOOL,
            "edits_without_lines",
            "commits_derived",
            "commits_without_lines",
        )
        dimensions: dict[str, serializers.Field[Any, Any, Any, Any]] = {
            name: serializers.CharField(required=False, allow_null=True) for name in GROUPS
        }
        figures = {name: serializers.IntegerField(allow_null=True) for name in names}
        cost = serializers.CharField(
            allow_null=True, help_text="Cost of all requests divided by the commits."
        )
        return {**dimensions, **fields, **figures, "cost_per_commit_usd": cost}


class DayPage(serializers.Serializer[Any]):
    """A page of a report on UTC days; a subclass adds ``data``."""

    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)
    to = serializers.CharField()
    tz = serializers.CharField(help_text="Always UTC: the figures are summed by UTC day.")
    data_refreshed_at = serializers.CharField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {"from": serializers.CharField()}


class OutcomePage(DayPage):
    data = OutcomeRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class DayParameters(PageParameters):
    """A range of UTC days, and filters. ``filters``: name of each -> its column in the table."""

    filters: ClassVar[Mapping[str, str]]

    to = serializers.CharField(
        max_length=40, default="", help_text="End, exclusive, to the next UTC day. Default: now."
    )
    limit = Number(min_value=1, max_value=10_000, default=1000)

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        text = f"First UTC day: a date or RFC 3339. Default: {DEFAULT_DAYS} days."
        fields["from"] = serializers.CharField(max_length=40, default="", help_text=text)
        for name in self.filters:
            child = {"child": KeyId()} if name == "key_id" else {}
            fields[name] = Values(help_text=f"Only rows with these values of {name!r}.", **child)
        return fields

    def validate_group_by(self, value: list[str]) -> list[str]:
        if len(value) > MAX_GROUPS:
            raise serializers.ValidationError(f"at most {MAX_GROUPS} at once")
        return list(dict.fromkeys(value))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        try:
            attrs["start"], attrs["end"] = day_range(attrs["from"], attrs["to"])
        except InvalidTimeRange as error:
            name, _, message = str(error).partition(": ")
            raise serializers.ValidationError({name: message}) from None
        condition = Q()
        for name, column in self.filters.items():
            if attrs.get(name):
                condition &= Q(**{f"{column}__in": column_values(name, attrs[name])})
        attrs["condition"] = condition
        return attrs


class OutcomeParameters(DayParameters):
    """A range of UTC days, filters and dimensions."""

    filters: ClassVar = {name: GROUPS[name] for name in FILTERS}
    group_by = Values(child=Choice(choices=sorted(GROUPS)))


def day_range(first: str, last: str) -> tuple[datetime, datetime]:
    """Return the UTC days from ``first`` to ``last`` (exclusive). Raises InvalidTimeRange."""
    utc = load_zone("UTC")
    end = _next_midnight(parse_instant(last, utc, "to") if last else now())
    start = _midnight(parse_instant(first, utc, "from")) if first else end - DEFAULT_DAYS * DAY
    if end <= start:
        raise InvalidTimeRange("to: must be later than from")
    if end - start > timedelta(days=MAX_DAYS):
        raise InvalidTimeRange(f"from, to: more than {MAX_DAYS} days")
    return start, end


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _next_midnight(at: datetime) -> datetime:
    midnight = _midnight(at)
    return midnight if midnight == at else midnight + DAY


class OutcomesView(ReportView):
    """Return edits, lines, commands, tests, commits and pull requests of coding agents, with cost.

    A caller without the permission to report gets the outcomes of its own requests.
    """

    parameters = OutcomeParameters
    permission_classes = (IsKeyOrStaff,)

    @extend_schema(responses=OutcomePage)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        groups = query.get("group_by", [])
        found = outcome_sums(self.reader, query["start"], query["end"], groups, query["condition"])
        if query["format"] != "json":
            return self.rows_response(query, "outcomes", _all(groups, found), _columns(groups))
        first, limit = offset_of(query["page"]), query["limit"]
        page = list(found[first : first + limit + 1])
        refreshed = refreshed_at()
        return Response(
            {
                "from": rfc3339(query["start"]),
                "to": rfc3339(query["end"]),
                "tz": "UTC",
                "data_refreshed_at": rfc3339(refreshed),
                "data": list(outcome_rows(groups, page[:limit])),
                "has_more": len(page) > limit,
                "next_page": encode_cursor(first + limit) if len(page) > limit else None,
            }
        )


def offset_of(cursor: str) -> int:
    offset = decode_cursor(cursor) if cursor else 0
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise invalid_cursor(cursor)
    return offset


def _all(groups: Sequence[str], found: Any) -> Iterator[Row]:
    rows = found if isinstance(found, list) else found.iterator(chunk_size=2000)
    return outcome_rows(groups, rows)


def _columns(groups: Sequence[str]) -> list[str]:
    return [*groups, *(name for name in column_names(OutcomeRow()) if name not in GROUPS)]
