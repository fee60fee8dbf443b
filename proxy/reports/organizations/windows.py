"""Buckets of the usage and cost reports: widths, their limits, pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.timezone import now
from rest_framework import serializers

from proxy.reports.answers import cursor_of, key_in, not_a_page
from proxy.reports.parameters import Choice, Number, Values
from proxy.reports.spans import BadSpan, moment, zone_named

WIDTHS: Final = {  # width -> (length, default limit, highest limit)
    "1d": (timedelta(days=1), 7, 31),
    "1h": (timedelta(hours=1), 24, 168),
    "1m": (timedelta(minutes=1), 60, 1440),
}


@dataclass(frozen=True, slots=True)
class Window:
    """One page of buckets, and where the next page starts (None: this is the last)."""

    edges: Sequence[datetime]
    width: str
    following: datetime | None

    @property
    def start(self) -> datetime:
        return self.edges[0]

    @property
    def end(self) -> datetime:
        return self.edges[-1]


def zulu(at: datetime) -> str:
    """RFC 3339 to the second, as Anthropic writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def snapped(at: datetime, length: timedelta) -> datetime:
    """The start of the bucket around a moment, in UTC."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return at - (at - epoch) % length


class WireParameters(serializers.Serializer[Any]):
    """Unknown parameters are refused, in Anthropic's words."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name in self.initial_data:
            if name not in self.fields:
                raise serializers.ValidationError({name[:60]: "Extra inputs are not permitted"})
        return attrs


class WindowParameters(WireParameters):
    starting_at = serializers.CharField(max_length=40)
    ending_at = serializers.CharField(max_length=40, default="")
    bucket_width = Choice(choices=list(WIDTHS), default="1d")
    limit = Number(min_value=1, required=False)
    page = serializers.CharField(max_length=500, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        length, usual, most = WIDTHS[attrs["bucket_width"]]
        limit = attrs.get("limit", usual)
        if limit > most:
            told = f"at most {most} for bucket_width {attrs['bucket_width']}, not {limit}"
            raise serializers.ValidationError({"limit": told})
        try:
            attrs["window"] = self._window(attrs, length, limit)
        except BadSpan as bad:
            name, _, message = str(bad).partition(": ")
            raise serializers.ValidationError({name: message}) from None
        return attrs

    def _window(self, attrs: dict[str, Any], length: timedelta, limit: int) -> Window:
        utc = zone_named("UTC")
        start = snapped(moment(attrs["starting_at"], utc, "starting_at"), length)
        end = moment(attrs["ending_at"], utc, "ending_at") if attrs["ending_at"] else now()
        if end <= start:
            told = f"{zulu(end)} is not after {zulu(start)}"
            raise BadSpan(f"ending_at: must be later than starting_at: {told}")
        if attrs["page"]:
            key = key_in(attrs["page"])
            if not isinstance(key, str):
                raise not_a_page(attrs["page"])
            start = snapped(moment(key, utc, "page"), length)
        edges = [start]
        while edges[-1] < end and len(edges) <= limit:
            edges.append(edges[-1] + length)
        if len(edges) == 1:  # a page beyond the end
            edges.append(start + length)
        following = edges[-1] if edges[-1] < end else None
        return Window(edges, attrs["bucket_width"], following)


def page(window: Window, results: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """The answer's frame: contiguous buckets, the empty ones with no results."""
    pairs = zip(window.edges, window.edges[1:], strict=False)
    following = window.following
    return {
        "data": [
            {"starting_at": zulu(start), "ending_at": zulu(end), "results": results.get(n, [])}
            for n, (start, end) in enumerate(pairs)
        ],
        "has_more": following is not None,
        "next_page": cursor_of(zulu(following)) if following else None,
    }


def values(choices: Sequence[str] = ()) -> Values:
    """A parameter that may be repeated, with or without brackets."""
    if choices:
        return Values(child=Choice(choices=list(choices)))
    return Values()
