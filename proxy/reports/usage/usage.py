"""GET /api/v1/usage/: tokens, requests, errors and cost by bucket and group."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any, Final

from django.db.models import Q
from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.permissions.row_permissions import Reader
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import DIMENSIONS, dimension_value
from proxy.reports.core.query_parameters import GroupParameters
from proxy.reports.core.rendering import Row, RowsAndColumns, decode_cursor, encode_cursor
from proxy.reports.core.time_ranges import TimeRange
from proxy.times import rfc3339

from .exchange_queries import usage_as_of
from .rollup_queries import Counts, Table, refreshed_at, usage, usage_columns


class CountColumns(serializers.Serializer[Any]):
    """The counts of a group. Tokens = reported + estimated, null if no request has a count.

    ``*_missing_requests`` are the requests without a count.
    """

    requests = serializers.IntegerField(help_text="Finished requests with any outcome.")
    errors = serializers.IntegerField(  # type: ignore[assignment]  # DRF removes fields from the class
        help_text="Failed requests, without those whose client disconnected."
    )
    client_gone = serializers.IntegerField(help_text="The client disconnected before the end.")
    input_tokens = serializers.IntegerField(
        allow_null=True, help_text="Neither read from nor written to a cache."
    )
    input_tokens_reported = serializers.IntegerField()
    input_tokens_estimated = serializers.IntegerField()
    input_missing_requests = serializers.IntegerField()
    output_tokens = serializers.IntegerField(allow_null=True, help_text="Reasoning included.")
    output_tokens_reported = serializers.IntegerField()
    output_tokens_estimated = serializers.IntegerField()
    output_missing_requests = serializers.IntegerField()
    cache_read_input_tokens = serializers.IntegerField(allow_null=True)
    cache_read_input_tokens_reported = serializers.IntegerField()
    cache_read_input_tokens_estimated = serializers.IntegerField()
    cache_read_missing_requests = serializers.IntegerField()
    cache_write_5m_tokens = serializers.IntegerField(allow_null=True)
    cache_write_5m_tokens_reported = serializers.IntegerField()
    cache_write_5m_tokens_estimated = serializers.IntegerField()
    cache_write_1h_tokens = serializers.IntegerField(allow_null=True)
    cache_write_1h_tokens_reported = serializers.IntegerField()
    cache_write_1h_tokens_estimated = serializers.IntegerField()
    cache_write_missing_requests = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField(
        allow_null=True, help_text="A part of output_tokens."
    )
    reasoning_tokens_reported = serializers.IntegerField()
    reasoning_tokens_estimated = serializers.IntegerField()
    reasoning_missing_requests = serializers.IntegerField()
    cost_usd = serializers.CharField(
        allow_null=True, help_text="Decimal string of US dollars; null: no request has a price."
    )
    cost_estimated_usd = serializers.CharField(help_text="The part computed from estimated tokens.")
    unpriced_requests = serializers.IntegerField(
        help_text="Requests that used tokens but have no price."
    )
    cost_is_floor = serializers.BooleanField(help_text="True if some requests have no price.")
    tool_calls = serializers.IntegerField()
    web_search_requests = serializers.IntegerField()


class UsageRow(CountColumns):
    """One bucket and group. Of the dimensions, only those in ``group_by`` are present."""

    starting_at = serializers.CharField()
    ending_at = serializers.CharField()
    date = serializers.CharField(help_text="The first day of the bucket, in ``tz``.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for name in DIMENSIONS:
            kind = serializers.IntegerField if name == "status" else serializers.CharField
            fields[name] = kind(required=False, allow_null=True)
        return fields


class RangeHeader(serializers.Serializer[Any]):
    """The reported time range, cut to quarter hours, and the watermark of the ledger."""

    to = serializers.CharField()
    tz = serializers.CharField()
    data_refreshed_at = serializers.CharField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {"from": serializers.CharField()}


class UsageAnswer(RangeHeader):
    data = UsageRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)
    bucket = serializers.CharField()
    group_by = serializers.ListField(child=serializers.CharField())
    totals = CountColumns()


def range_header(time_range: TimeRange) -> Row:
    """Return the response fields that describe the time range of a report."""
    refreshed = refreshed_at()
    return {
        "from": time_range.local(time_range.start),
        "to": time_range.local(time_range.end),
        "tz": str(time_range.zone),
        "data_refreshed_at": rfc3339(refreshed),
    }


AS_OF_BUCKETS: Final = ("1d", "1w", "1mo", "all")
MAX_AS_OF: Final = timedelta(days=93)
"""The longest range with ``as_of``, which reads single requests instead of the rollups."""
FIRST_STEPS: Final = (16, 16, 4)  # buckets in the first query, by number of groups; else 1
MAX_RETURNED: Final = 10**9
ROWS_PER_STEP: Final = 8000  # rows that one query should return


def usage_rows(
    reader: Reader,
    time_range: TimeRange,
    groups: Sequence[str],
    condition: Q,
    as_of: date | None = None,
    *,
    first: int = 0,
    enough: int = ROWS_PER_STEP,
) -> Iterator[tuple[int, Row]]:
    """Yield (bucket number, row), oldest bucket first, then by group; empty buckets have no row.

    Each query reads several buckets, beginning with bucket number ``first``. The number of buckets
    is adjusted so that the queries return about ``enough`` rows. Reading one page therefore does
    not cost as much as reading the whole report.
    """
    step = FIRST_STEPS[len(groups)] if len(groups) < len(FIRST_STEPS) else 1
    number, last, left = first, len(time_range.edges) - 1, enough
    while number < last:
        part = TimeRange(
            time_range.edges[number : number + step + 1], time_range.bucket, time_range.zone
        )
        table = _table(reader, part, groups, condition, as_of)
        for (bucket, key), sums in sorted(table.items(), key=lambda one: _sort_key(one[0])):
            dimensions = {
                name: dimension_value(name, value) for name, value in zip(groups, key, strict=True)
            }
            yield number + bucket, _usage_row(part, bucket, dimensions, sums)
        number += step
        left = left - len(table) if left > len(table) else enough
        step = max(1, min(4 * step, left * step // max(1, len(table)) + 1))


def _table(
    reader: Reader, time_range: TimeRange, groups: Sequence[str], condition: Q, as_of: date | None
) -> Table:
    if as_of is None:
        return usage(reader, time_range, groups, condition)
    return usage_as_of(reader, time_range, groups, condition, as_of)


def _usage_row(time_range: TimeRange, bucket: int, dimensions: Row, sums: Counts) -> Row:
    start, end = time_range.edges[bucket], time_range.edges[bucket + 1]
    return {
        "starting_at": time_range.local(start),
        "ending_at": time_range.local(end),
        "date": start.astimezone(time_range.zone).date().isoformat(),
        **dimensions,
        **usage_columns(sums),
    }


def _sort_key(bucket_and_key: tuple[int, tuple[Any, ...]]) -> tuple[Any, ...]:
    bucket, key = bucket_and_key
    return (bucket, tuple((value is not None, str(value)) for value in key))


class UsageParameters(GroupParameters):
    """Parameters of the usage report; by default, it is grouped by day and model."""

    as_of = serializers.DateField(
        required=False,
        help_text="The report as it was known at the end of this UTC day: only requests recorded "
        "by then, at most 93 days. A request that was changed later has no cost.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "group_by" not in self.initial_data:
            attrs["group_by"] = ["model"]
        attrs = super().validate(attrs)
        time_range: TimeRange = attrs["time_range"]
        if "as_of" in attrs:
            if attrs["bucket"] not in AS_OF_BUCKETS:
                message = f"with as_of, use one of {', '.join(AS_OF_BUCKETS)}"
                raise serializers.ValidationError({"bucket": message})
            if time_range.end - time_range.start > MAX_AS_OF:
                message = f"is for at most {MAX_AS_OF.days} days"
                raise serializers.ValidationError({"as_of": message})
        return attrs


class UsageView(ReportView):
    """Return usage by bucket (default: day) and group (default: requested model)."""

    parameters = UsageParameters

    @extend_schema(responses=UsageAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        time_range, groups, condition = (
            query["time_range"],
            query.get("group_by", []),
            query["condition"],
        )
        if query["format"] != "json":
            name = f"usage-{query['month']}" if query["month"][:1].isdigit() else "usage"
            return self.rows_response(query, name, *export_usage(self.reader, query))
        rows_returned, next_bucket = self._page(query)
        total_range, as_of = as_one_bucket(time_range), query.get("as_of")
        return Response(
            {
                "data": rows_returned,
                "has_more": next_bucket is not None,
                "next_page": next_bucket,
                **range_header(time_range),
                "bucket": query["bucket"],
                "group_by": groups,
                "totals": usage_columns(
                    sum_table(_table(self.reader, total_range, [], condition, as_of))
                ),
            }
        )

    def _page(self, query: dict[str, Any]) -> tuple[list[Row], str | None]:
        """Return the rows of a page, and the cursor of the next page or None.

        The cursor has the start of the next row's bucket, and the number of rows of this bucket
        that were already returned.
        """
        time_range, groups = query["time_range"], query.get("group_by", [])
        first, skipped = decode_usage_cursor(query["page"], time_range) if query["page"] else (0, 0)
        enough = skipped + query["limit"] + 1
        rows = usage_rows(
            self.reader, time_range, groups, query["condition"], query.get("as_of"),
            first=first, enough=enough,
        )  # fmt: skip
        found = list(islice(rows, skipped, enough))
        page = found[: query["limit"]]
        if len(found) == len(page):
            return [row for _, row in page], None
        next_bucket = found[-1][0]
        returned = sum(number == next_bucket for number, _ in page)
        returned += skipped if next_bucket == first else 0
        return [row for _, row in page], encode_cursor(
            [time_range.edges[next_bucket].isoformat(), returned]
        )


def export_usage(reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
    groups = query.get("group_by", [])
    condition, as_of = query["condition"], query.get("as_of")
    rows = usage_rows(reader, query["time_range"], groups, condition, as_of)
    return (row for _, row in rows), _csv_columns(groups)


def decode_usage_cursor(cursor: str, time_range: TimeRange) -> tuple[int, int]:
    """Return the bucket number in a cursor, and how many rows of this bucket were returned.

    Raise ValidationError if the cursor is invalid.
    """
    key = decode_cursor(cursor)
    try:
        start, rows_returned = key
        at = datetime.fromisoformat(start)
        number = time_range.edges[:-1].index(at)
        if type(rows_returned) is int and 0 <= rows_returned <= MAX_RETURNED:
            return number, rows_returned
    except (ValueError, TypeError):
        pass
    raise serializers.ValidationError(
        {"page": "expected the next_page of an earlier answer to the same query"}
    )


def as_one_bucket(time_range: TimeRange) -> TimeRange:
    """Return the same time range with a single bucket."""
    return TimeRange([time_range.start, time_range.end], "all", time_range.zone)


def sum_table(table: Table) -> Counts:
    total = Counts()
    for sums in table.values():
        total.add(sums.counts)
    return total


def _csv_columns(groups: Sequence[str]) -> list[str]:
    return ["starting_at", "ending_at", "date", *groups, *CountColumns().fields]
