"""GET /api/v1/usage/: tokens, requests, errors and cost by bucket and group."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.permissions.row_permissions import Reader
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import DIMENSIONS, dimension_value
from proxy.reports.core.query_parameters import (
    Choice,
    Groups,
    Number,
    PageParameters,
    TimeRangeParameters,
)
from proxy.reports.core.rendering import (
    Row,
    RowsAndColumns,
    decode_cursor,
    encode_cursor,
    page_of,
    paged,
)
from proxy.reports.core.time_ranges import BUCKETS, TimeRange

from .exchange_queries import usage_as_of
from .metrics import USAGE, CountColumns, merge_counts, usage_columns
from .reports import RangeHeader, range_header
from .rollup_queries import Counts, Key, Table, usage


class UsageRow(CountColumns):
    """One bucket and group. Of the dimensions, only those in ``group_by`` are present."""

    starting_at = serializers.CharField()
    ending_at = serializers.CharField()
    date = serializers.CharField(help_text="The first day of the bucket, in ``tz``.")

    def get_fields(self) -> dict[str, Any]:
        dimensions = {
            name: kind(required=False, allow_null=True)
            for name in DIMENSIONS
            for kind in [serializers.IntegerField if name == "status" else serializers.CharField]
        }
        return {**super().get_fields(), **dimensions}


class UsageAnswer(page_of(UsageRow), RangeHeader):  # type: ignore[misc]  # a class that is made
    bucket = serializers.CharField()
    group_by = serializers.ListField(child=serializers.CharField())
    totals = CountColumns()


AS_OF_BUCKETS: Final = ("1d", "1w", "1mo", "all")
MAX_AS_OF: Final = timedelta(days=93)
"""The longest range with ``as_of``, which reads single requests instead of the rollups."""
FIRST_STEPS: Final = (16, 16, 4)  # buckets in the first query, by number of groups; else 1
ROWS_PER_STEP: Final = 8000  # rows that one query should return


def usage_rows(
    reader: Reader, query: Row, *, first: int = 0, enough: int = ROWS_PER_STEP
) -> Iterator[tuple[int, Row]]:
    """Yield (bucket number, row), oldest bucket first, then by group; empty buckets have no row.

    Each query reads several buckets, beginning with bucket number ``first``. The number of buckets
    is adjusted so that the queries return about ``enough`` rows. Reading one page therefore does
    not cost as much as reading the whole report.
    """

    def in_order(one: tuple[tuple[int, Key], Counts]) -> tuple[Any, ...]:
        (bucket, key), _ = one
        return (bucket, [(value is not None, str(value)) for value in key])

    time_range, groups = query["time_range"], query.get("group_by", [])
    step = FIRST_STEPS[len(groups)] if len(groups) < len(FIRST_STEPS) else 1
    number, last, left = first, len(time_range.edges) - 1, enough
    while number < last:
        part = TimeRange(
            time_range.edges[number : number + step + 1], time_range.bucket, time_range.zone
        )
        table = _table(reader, part, groups, query)
        for (bucket, key), sums in sorted(table.items(), key=in_order):
            start, end = part.edges[bucket], part.edges[bucket + 1]
            dimensions = {
                name: dimension_value(name, value) for name, value in zip(groups, key, strict=True)
            }
            yield (
                number + bucket,
                {
                    "starting_at": part.local(start),
                    "ending_at": part.local(end),
                    "date": start.astimezone(part.zone).date().isoformat(),
                    **dimensions,
                    **usage_columns(sums),
                },
            )
        number += step
        left = left - len(table) if left > len(table) else enough
        step = max(1, min(4 * step, left * step // max(1, len(table)) + 1))


def _table(reader: Reader, time_range: TimeRange, groups: Sequence[str], query: Row) -> Table:
    if as_of := query.get("as_of"):
        return usage_as_of(reader, time_range, groups, query["condition"], as_of)
    return usage(reader, time_range, groups, query["condition"])


class UsageParameters(TimeRangeParameters, PageParameters):
    """Parameters of the usage report; by default, it is grouped by day and model."""

    bucket = Choice(choices=BUCKETS, default="1d")
    group_by = Groups(child=Choice(choices=sorted(DIMENSIONS)))
    limit = Number(min_value=1, max_value=10_000, default=1000)

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

    parameters, answer = UsageParameters, UsageAnswer

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        if query["format"] != "json":
            name = f"usage-{query['month']}" if query["month"][:1].isdigit() else "usage"
            return self.rows_response(query, name, *self.export(self.reader, query))
        totals = _table(self.reader, query["time_range"].as_one_bucket, [], query)
        return Response(
            {
                **self._page(query),
                **range_header(query["time_range"]),
                "bucket": query["bucket"],
                "group_by": query.get("group_by", []),
                "totals": usage_columns(merge_counts(totals.values())),
            }
        )

    @staticmethod
    def export(reader: Reader, query: Row) -> RowsAndColumns:
        columns = ["starting_at", "ending_at", "date", *query.get("group_by", []), *USAGE]
        return (row for _, row in usage_rows(reader, query)), columns

    def _page(self, query: Row) -> Row:
        """Return the rows of a page and the cursor of the next page.

        The cursor has the start of the next row's bucket, and the number of rows of this bucket
        that were already returned.
        """
        edges, limit = query["time_range"].edges, query["limit"]
        first = skipped = 0
        if query["page"]:
            start, skipped = decode_cursor(query["page"], "usage")
            at = datetime.fromisoformat(start)
            if at not in edges[:-1]:
                message = "expected the next_page of an earlier answer to the same query"
                raise serializers.ValidationError({"page": message})
            first = edges.index(at)
        enough = skipped + limit + 1
        rows = usage_rows(self.reader, query, first=first, enough=enough)
        found = list(islice(rows, skipped, enough))
        page, next_page = found[:limit], None
        if len(found) > limit:
            bucket = found[-1][0]
            returned = sum(number == bucket for number, _ in page)
            returned += skipped if bucket == first else 0
            next_page = encode_cursor([edges[bucket].isoformat(), returned], "usage")
        return paged([row for _, row in page], next_page)
