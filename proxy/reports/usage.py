"""GET /api/v1/usage/: tokens, requests, errors and cost by bucket and group."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.db.models import Q
from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.visibility import Reader

from .answers import Export, Row, cursor_of, key_in
from .base import ReportView
from .parameters import GroupParameters
from .spans import Span
from .sums import DIMENSIONS, Sums, Table, columns_of, refreshed_at, usage


class CountColumns(serializers.Serializer[Any]):
    """What was counted. Tokens are known = reported + estimated; ``_missing_requests`` had none.

    Known tokens are null where no request of the group has a count.
    """

    requests = serializers.IntegerField(help_text="Finished requests, whatever became of them.")
    errors = serializers.IntegerField(  # type: ignore[assignment]  # DRF takes fields off the class
        help_text="Failed for another cause than the client's leaving."
    )
    client_gone = serializers.IntegerField(help_text="The client left before the end.")
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
        allow_null=True, help_text="Decimal string of US dollars; null: nothing here has a price."
    )
    cost_estimated_usd = serializers.CharField(help_text="The part that rests on estimated tokens.")
    unpriced_requests = serializers.IntegerField(help_text="Used tokens, but have no price.")
    cost_is_floor = serializers.BooleanField(help_text="True when something is not in the cost.")
    tool_calls = serializers.IntegerField()
    web_search_requests = serializers.IntegerField()


class UsageRow(CountColumns):
    """One bucket and group; the columns of ``group_by`` are there, the others are not."""

    starting_at = serializers.CharField()
    ending_at = serializers.CharField()
    date = serializers.CharField(help_text="The first day of the bucket, in ``tz``.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for name in DIMENSIONS:
            number = name in {"status", "key_id"}
            kind = serializers.IntegerField if number else serializers.CharField
            fields[name] = kind(required=False, allow_null=True)
        return fields


class SpanHead(serializers.Serializer[Any]):
    """The stretch that was reported: cut to quarter hours, and how fresh the books are."""

    to = serializers.CharField()
    tz = serializers.CharField()
    data_refreshed_at = serializers.CharField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {"from": serializers.CharField()}


class UsageAnswer(SpanHead):
    data = UsageRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)
    bucket = serializers.CharField()
    group_by = serializers.ListField(child=serializers.CharField())
    totals = CountColumns()


def head_of(span: Span) -> Row:
    """What every answer over a span says of it."""
    fresh = refreshed_at()
    return {
        "from": span.local(span.start),
        "to": span.local(span.end),
        "tz": str(span.zone),
        "data_refreshed_at": fresh.isoformat().replace("+00:00", "Z") if fresh else None,
    }


FIRST_STEPS: Final = (16, 16, 4)  # buckets, by the number of groups; then one
MOST_SHOWN: Final = 10**9
MOST_ROWS: Final = 8000  # that a step should read


def usage_rows(
    reader: Reader,
    span: Span,
    groups: Sequence[str],
    condition: Q,
    *,
    first: int = 0,
    enough: int = MOST_ROWS,
) -> Iterator[tuple[int, Row]]:
    """(number of the bucket, row): oldest bucket first, then by group; empty buckets have none.

    Some buckets are read at a time, from number ``first`` on, as many as seem to have ``enough``
    rows: whoever wants a page pays for a page.
    """
    step = FIRST_STEPS[len(groups)] if len(groups) < len(FIRST_STEPS) else 1
    number, last, left = first, len(span.edges) - 1, enough
    while number < last:
        part = Span(span.edges[number : number + step + 1], span.bucket, span.zone)
        table = usage(reader, part, groups, condition)
        for (bucket, key), sums in sorted(table.items(), key=lambda one: _order(one[0])):
            said = dict(zip(groups, key, strict=True))
            yield number + bucket, _usage_row(part, bucket, said, sums)
        number += step
        left = left - len(table) if left > len(table) else enough
        step = max(1, min(4 * step, left * step // max(1, len(table)) + 1))


def _usage_row(span: Span, bucket: int, said: Row, sums: Sums) -> Row:
    start, end = span.edges[bucket], span.edges[bucket + 1]
    return {
        "starting_at": span.local(start),
        "ending_at": span.local(end),
        "date": start.astimezone(span.zone).date().isoformat(),
        **said,
        **columns_of(sums),
    }


def _order(place: tuple[int, tuple[Any, ...]]) -> tuple[Any, ...]:
    bucket, key = place
    return (bucket, tuple((value is not None, str(value)) for value in key))


class UsageParameters(GroupParameters):
    """By day and model unless asked otherwise."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "group_by" not in self.initial_data:
            attrs["group_by"] = ["model"]
        return super().validate(attrs)


class UsageView(ReportView):
    """Usage by bucket (a day) and group (the model that was asked for)."""

    parameters = UsageParameters

    @extend_schema(parameters=[UsageParameters], responses=UsageAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        span, groups, condition = asked["span"], asked.get("group_by", []), asked["condition"]
        if asked["format"] != "json":
            return self.rows_answer(asked, "usage", *every_sum(self.reader, asked))
        shown, following = self._page(asked)
        return Response(
            {
                "data": shown,
                "has_more": following is not None,
                "next_page": following,
                **head_of(span),
                "bucket": asked["bucket"],
                "group_by": groups,
                "totals": columns_of(total_of(usage(self.reader, whole(span), [], condition))),
            }
        )

    def _page(self, asked: dict[str, Any]) -> tuple[list[Row], str | None]:
        """Rows, and the word for where they go on: a bucket's start, and rows of it so far."""
        span, groups = asked["span"], asked.get("group_by", [])
        first, skipped = place_in(asked["page"], span) if asked["page"] else (0, 0)
        enough = skipped + asked["limit"] + 1
        rows = usage_rows(self.reader, span, groups, asked["condition"], first=first, enough=enough)
        found = list(islice(rows, skipped, enough))
        page = found[: asked["limit"]]
        if len(found) == len(page):
            return [row for _, row in page], None
        following = found[-1][0]
        of_it = sum(number == following for number, _ in page)
        of_it += skipped if following == first else 0
        return [row for _, row in page], cursor_of([span.edges[following].isoformat(), of_it])


def every_sum(reader: Reader, asked: dict[str, Any]) -> Export:
    groups = asked.get("group_by", [])
    rows = usage_rows(reader, asked["span"], groups, asked["condition"])
    return (row for _, row in rows), _columns(groups)


def place_in(cursor: str, span: Span) -> tuple[int, int]:
    """Number of the bucket, and rows of it that were shown. Raises ValidationError."""
    key = key_in(cursor)
    try:
        start, shown = key
        at = datetime.fromisoformat(start)
        number = span.edges[:-1].index(at)
        if type(shown) is int and 0 <= shown <= MOST_SHOWN:
            return number, shown
    except (ValueError, TypeError):
        pass
    raise serializers.ValidationError(
        {"page": "expected the next_page of an earlier answer to the same question"}
    )


def whole(span: Span) -> Span:
    """The same stretch as one bucket."""
    return Span([span.start, span.end], "all", span.zone)


def total_of(table: Table) -> Sums:
    total = Sums()
    for sums in table.values():
        total.add(sums.counts)
    return total


def _columns(groups: Sequence[str]) -> list[str]:
    return ["starting_at", "ending_at", "date", *groups, *CountColumns().fields]
