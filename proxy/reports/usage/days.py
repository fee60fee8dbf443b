"""The reports on UTC days: what coding agents did, and why answers ended.

The figures of ``outcomes`` come from ``SessionOutcomeDay``, joined to the usage of the same session
and UTC day; those of ``stop_reasons`` from ``StopReasonDay``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, ClassVar, Final

from django.db.models import Count, Q, Sum
from django.http import HttpResponseBase
from django.utils.timezone import now
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.outcomes.extraction import EDIT_KINDS
from proxy.ledger.posting.outcomes import COUNTS
from proxy.models import StopReasonDay, UsageBySessionDay
from proxy.money import usd
from proxy.permissions.row_permissions import Reader, visible_rows
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import dimension_value, order_of, shown_rows
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import (
    Choice,
    Groups,
    Number,
    PageParameters,
    Values,
    filters_of,
    invalid_range,
)
from proxy.reports.core.references import KeyId
from proxy.reports.core.rendering import (
    Row,
    column_names,
    decode_cursor,
    encode_cursor,
    page_of,
    paged,
    shape_of,
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
MAX_DAYS: Final = 400
DEFAULT_DAYS: Final = 30

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


class DayHeader(serializers.Serializer[Any]):
    to = serializers.CharField()
    tz = serializers.CharField(help_text="Always UTC: the figures are summed by UTC day.")
    data_refreshed_at = serializers.CharField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {"from": serializers.CharField()}


class DayParameters(PageParameters):
    """A range of UTC days, filters and dimensions. Both mappings: name -> column in the table."""

    filters: ClassVar[Mapping[str, str]]
    dimensions: ClassVar[Mapping[str, str]]
    default_groups: ClassVar[Sequence[str]]

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
        fields["group_by"] = Groups(child=Choice(choices=sorted(self.dimensions)))
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        if "group_by" not in self.initial_data:
            attrs["group_by"] = list(self.default_groups)
        try:
            attrs["start"], attrs["end"] = day_range(attrs["from"], attrs["to"])
        except InvalidTimeRange as error:
            raise invalid_range(error) from None
        attrs["condition"] = filters_of(attrs, self.filters)
        return attrs


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


class DayReport(ReportView):
    """A report on UTC days, with pages by offset.

    A caller without the permission to report gets the figures of its own requests.
    """

    permission_classes = (IsKeyOrStaff,)
    row: ClassVar[type[serializers.Serializer[Any]]]
    dimensions: ClassVar[Mapping[str, str]]
    filters: ClassVar[Mapping[str, str]]
    default_groups: ClassVar[Sequence[str]] = ()
    file_name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = ("filters", "dimensions", "default_groups")
        declared = {name: getattr(cls, name) for name in names}
        name = cls.row.__name__.removesuffix("Row")
        cls.parameters = shape_of(f"{name}Parameters", {}, DayParameters, **declared)
        page = page_of(cls.row)
        cls.answer = type(page.__name__, (page, DayHeader), {})

    def rows(self, query: Row, first: int, stop: int | None) -> Iterator[Row]:
        """Yield the rows from number ``first`` to ``stop``."""
        raise NotImplementedError

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        if query["format"] != "json":
            names = (name for name in column_names(self.row()) if name not in self.dimensions)
            rows = self.rows(query, 0, None)
            return self.rows_response(query, self.file_name, rows, [*query["group_by"], *names])
        first = decode_cursor(query["page"], "offset") if query["page"] else 0
        stop = first + query["limit"]
        page = list(self.rows(query, first, stop + 1))
        more = len(page) > query["limit"]
        return Response(
            {
                "from": rfc3339(query["start"]),
                "to": rfc3339(query["end"]),
                "tz": "UTC",
                "data_refreshed_at": rfc3339(refreshed_at()),
                **paged(page[: query["limit"]], encode_cursor(stop, "offset") if more else None),
            }
        )


class OutcomesView(DayReport):
    """Return edits, lines, commands, tests, commits and pull requests of coding agents, with cost.

    A caller without the permission to report gets the outcomes of its own requests.
    """

    row, dimensions, file_name = OutcomeRow, GROUPS, "outcomes"
    filters: ClassVar = {name: column for name, column in GROUPS.items() if name != "day"}

    def rows(self, query: Row, first: int, stop: int | None) -> Iterator[Row]:
        groups, condition = query["group_by"], query["condition"]
        found = outcome_sums(self.reader, query["start"], query["end"], groups, condition)
        rows = found[first:stop]
        return outcome_rows(groups, rows if isinstance(rows, list) else rows.iterator(2000))


STOP_DIMENSIONS: Final[Mapping[str, str]] = {
    "day": "start",
    "team": "team",
    "user": "user",
    "client": "client_name",
    "client_version": "client_version",
    "model": "model_requested",
    "tool": "tool",
}
"""Name of the dimension in the API -> its column in ``StopReasonDay``."""
STOP_FILTERS: Final[Mapping[str, str]] = {
    **{name: column for name, column in STOP_DIMENSIONS.items() if name != "day"},
    "stop_reason": "stop_reason",
}


def stop_reason_rows(
    reader: Reader,
    start: datetime,
    end: datetime,
    groups: Sequence[str],
    condition: Q | None = None,
    *,
    at_each_tool: bool = False,
) -> Iterator[Row]:
    """Yield the requests of each group and stop reason, of the UTC days in this time range.

    The groups are in order, and in each the most frequent stop reason is first. ``at_each_tool``:
    count a request at each tool that its answer calls, not only once.
    """
    columns = [STOP_DIMENSIONS[name] for name in groups]
    rows = StopReasonDay.objects.filter(
        visible_rows(reader), condition or Q(), start__gte=start, start__lt=end
    )
    count = "requests_with_tool" if at_each_tool or "tool" in groups else "requests"
    sums = rows.order_by().values(*columns, "stop_reason").annotate(sum_requests=Sum(count))
    by_name = map(order_of, groups, columns)
    found = sums.filter(sum_requests__gt=0).order_by(
        *by_name, *columns, "-sum_requests", "stop_reason"
    )
    named = shown_rows(groups, columns, found.iterator(chunk_size=2000))
    for key, of_group in groupby(named, itemgetter(0)):
        reasons = [row for _, row in of_group]
        total = sum(row["sum_requests"] for row in reasons)
        dimensions = {name: _value(name, each) for name, each in zip(groups, key, strict=True)}
        for row in reasons:
            yield {
                **dimensions,
                "stop_reason": row["stop_reason"] or None,
                "requests": row["sum_requests"],
                "share": round(row["sum_requests"] / total, 6),
            }


def _value(name: str, value: Any) -> Any:
    return f"{value:%Y-%m-%d}" if name == "day" else dimension_value(name, value) or None


class StopReasonRow(serializers.Serializer[Any]):
    """One stop reason of a group. Of the dimensions, only those in ``group_by`` are present."""

    stop_reason = serializers.CharField(
        allow_null=True, help_text="Null: the request has no complete answer."
    )
    requests = serializers.IntegerField(
        help_text="Finished requests; by tool, each is counted at every tool that its answer calls."
    )
    share = serializers.FloatField(help_text="Part of the requests of its group, from 0 to 1.")

    def get_fields(self) -> dict[str, Any]:
        texts = {"tool": "Null: the answer calls no tool."}
        dimensions = {
            name: serializers.CharField(
                required=False, allow_null=True, help_text=texts.get(name, "Null: unknown.")
            )
            for name in STOP_DIMENSIONS
        }
        return {**dimensions, **super().get_fields()}


class StopReasonsView(DayReport):
    """Return why answers ended: the requests of each stop reason, by up to four dimensions.

    A caller without the permission to report gets the figures of its own requests.
    """

    row, dimensions, filters = StopReasonRow, STOP_DIMENSIONS, STOP_FILTERS
    default_groups, file_name = ("model",), "stop_reasons"

    def rows(self, query: Row, first: int, stop: int | None) -> Iterator[Row]:
        rows = stop_reason_rows(
            self.reader,
            query["start"],
            query["end"],
            query["group_by"],
            query["condition"],
            at_each_tool=bool(query.get("tool")),
        )
        return islice(rows, first, stop)
