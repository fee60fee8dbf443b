"""Time buckets of Anthropic's usage and cost reports: widths, limits and pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from django.utils.timezone import now
from rest_framework import serializers

from proxy.reports.core.query_parameters import Choice, Number, Values, invalid_range
from proxy.reports.core.rendering import decode_cursor, encode_cursor, paged
from proxy.reports.core.time_ranges import InvalidTimeRange, load_zone, parse_instant
from proxy.times import rfc3339

WIDTHS: Final = {  # width -> (length, default limit, maximum limit)
    "1d": (timedelta(days=1), 7, 31),
    "1h": (timedelta(hours=1), 24, 168),
    "1m": (timedelta(minutes=1), 60, 1440),
}


@dataclass(frozen=True, slots=True)
class Window:
    """One page of buckets. ``next_start`` is the start of the next page, None on the last page."""

    edges: Sequence[datetime]
    width: str
    next_start: datetime | None

    @property
    def start(self) -> datetime:
        return self.edges[0]

    @property
    def end(self) -> datetime:
        return self.edges[-1]


def bucket_start(at: datetime, length: timedelta) -> datetime:
    """Return the start of the bucket of this length, aligned to UTC, that contains ``at``."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return at - (at - epoch) % length


class AdminApiParameters(serializers.Serializer[Any]):
    """Parameters of the Admin API; an unknown parameter gets Anthropic's error message."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name in self.initial_data:
            if name not in self.fields:
                raise serializers.ValidationError({name[:60]: "Extra inputs are not permitted"})
        return attrs


class WindowParameters(AdminApiParameters):
    starting_at = serializers.CharField(
        max_length=40,
        help_text="Start, inclusive: RFC 3339, rounded down to the start of a bucket.",
    )
    ending_at = serializers.CharField(
        max_length=40, default="", help_text="End, exclusive: RFC 3339. Default: now."
    )
    bucket_width = Choice(choices=list(WIDTHS), default="1d")
    limit = Number(min_value=1, required=False)
    page = serializers.CharField(max_length=500, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        length, default, highest = WIDTHS[attrs["bucket_width"]]
        limit = attrs.get("limit", default)
        if limit > highest:
            message = f"at most {highest} for bucket_width {attrs['bucket_width']}, not {limit}"
            raise serializers.ValidationError({"limit": message})
        try:
            attrs["window"] = self._window(attrs, length, limit)
        except InvalidTimeRange as error:
            raise invalid_range(error) from None
        return attrs

    def _window(self, attrs: dict[str, Any], length: timedelta, limit: int) -> Window:
        utc = load_zone("UTC")
        start = bucket_start(parse_instant(attrs["starting_at"], utc, "starting_at"), length)
        end = parse_instant(attrs["ending_at"], utc, "ending_at") if attrs["ending_at"] else now()
        if end <= start:
            message = f"{rfc3339(end, 'seconds')} is not after {rfc3339(start, 'seconds')}"
            raise InvalidTimeRange(f"ending_at: must be later than starting_at: {message}")
        if attrs["page"]:
            at = datetime.fromisoformat(decode_cursor(attrs["page"], "buckets"))
            start = bucket_start(at, length)
        edges = [start]
        while edges[-1] < end and len(edges) <= limit:
            edges.append(edges[-1] + length)
        if len(edges) == 1:  # the cursor is at or after the end of the range
            edges.append(start + length)
        next_start = edges[-1] if edges[-1] < end else None
        return Window(edges, attrs["bucket_width"], next_start)


def bucket_page(window: Window, results: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the response body with all buckets of the page; ``results`` is by bucket number."""
    rows = [
        {
            "starting_at": rfc3339(start, "seconds"),
            "ending_at": rfc3339(end, "seconds"),
            "results": results.get(n, []),
        }
        for n, (start, end) in enumerate(pairwise(window.edges))
    ]
    following = window.next_start
    return paged(rows, encode_cursor(rfc3339(following), "buckets") if following else None)


def repeatable(choices: Sequence[str] = (), help_text: str | None = None) -> Values:
    """Return a field for a parameter that may be repeated as ``name`` or ``name[]``."""
    if choices:
        return Values(child=Choice(choices=list(choices)), help_text=help_text)
    return Values(help_text=help_text)
