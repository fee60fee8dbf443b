"""Query parameters of the reports. A request with an invalid or unknown parameter gets a 400."""

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NoReturn

from django.db.models import Q
from django.http import QueryDict
from django.utils.timezone import now
from rest_framework import serializers
from rest_framework.fields import empty

from proxy.models import Outcome

from .dimensions import DIMENSIONS, column_values
from .references import KeyId
from .rendering import FORMATS
from .time_ranges import (
    DAY,
    InvalidTimeRange,
    TimeRange,
    build_time_range,
    load_zone,
    midnight,
    month_bounds,
    parse_instant,
)

MAX_LENGTH: Final = 200  # characters of one parameter value
MAX_VALUES: Final = 50
MAX_GROUPS: Final = 4


class Choice(serializers.ChoiceField):
    """A field for one of several values; the error message lists these values."""

    default_error_messages: ClassVar = {
        "invalid_choice": '"{input}" is not a valid choice; known: {known}'
    }

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        super().fail(key, known=", ".join(map(str, self.choices)), **kwargs)


class QuotingField(serializers.Field[Any, Any, Any, Any]):
    """A field whose error message quotes the invalid value; DRF's own message does not."""

    expected: ClassVar[str]

    def to_internal_value(self, data: Any) -> Any:
        try:
            return super().to_internal_value(data)
        except serializers.ValidationError:
            message = f"{str(data)[:60]!r} is not {self.expected}"
            raise serializers.ValidationError(message) from None


class Amount(QuotingField, serializers.DecimalField):
    """An amount of US dollars."""

    expected = "an amount of at most 18 digits, 9 of them after the decimal point"


class Flag(serializers.BooleanField):
    default_error_messages: ClassVar = {"invalid": '"{input}" is neither true nor false'}


class Number(QuotingField, serializers.IntegerField):
    """A whole number within bounds; the error message has the number and the violated bound."""

    expected = "a whole number"
    default_error_messages: ClassVar = {
        "min_value": "%(value)s is too small; the minimum is {min_value}",
        "max_value": "%(value)s is too large; the maximum is {max_value}",
    }


class Values(serializers.ListField):
    """Several values, as ``name=`` or ``name[]=`` repeated, or in one value with commas."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("child", serializers.CharField(max_length=MAX_LENGTH))
        super().__init__(required=False, max_length=MAX_VALUES, **kwargs)

    def to_internal_value(self, data: Any) -> list[Any]:
        parts = [part.strip() for text in data for part in str(text).split(",")]
        return super().to_internal_value([part for part in parts if part])


class Groups(Values):
    """Up to ``MAX_GROUPS`` dimensions."""

    def run_validation(self, data: Any = empty) -> Any:
        value = super().run_validation(data)
        if len(value) > MAX_GROUPS:
            raise serializers.ValidationError(f"at most {MAX_GROUPS} at once")
        return list(dict.fromkeys(value))


FORMER_NAMES: Final[Mapping[str, str]] = {
    "agent": "agent_id",
    "min_cost": "min_cost_usd",
    "min_ms": "min_total_ms",
    "session": "session_id",
}
"""Parameter that clients may use -> the parameter that has the name of the column."""


class ReportParameters(serializers.Serializer[Any]):
    """Parameters that every report accepts."""

    format = Choice(choices=FORMATS, default="json")

    def __init__(self, instance: Any = None, data: Any = empty, **kwargs: Any) -> None:
        super().__init__(instance, data, **kwargs)
        if data is not empty:
            self.initial_data = self._with_current_names(data)

    def _with_current_names(self, data: Any) -> Any:
        """Return a copy of a query in which the former names of parameters are replaced."""
        current = data.copy()
        for former, name in FORMER_NAMES.items():
            is_former = name in self.fields and former not in self.fields
            if is_former and former in current and name not in current:
                values = current.pop(former)  # a QueryDict returns a list
                is_list = isinstance(self.fields[name], Values)
                if isinstance(current, QueryDict):
                    current.setlist(name, values)
                else:
                    current[name] = [values] if is_list and isinstance(values, str) else values
        return current

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        known = set(self.fields)
        for name in self.initial_data:
            if name not in known:
                close = difflib.get_close_matches(name[:60], known, 1)
                hint = f"did you mean {close[0]!r}? Known here" if close else "known here"
                message = f"unknown parameter; {hint}: {', '.join(sorted(known))}"
                raise serializers.ValidationError({name[:60]: message})
        return attrs


class JsonOnlyParameters(ReportParameters):
    """Parameters of a report that is available only as JSON, because it is not a table."""

    format = Choice(choices=("json",), default="json")


class PageParameters(ReportParameters):
    limit = Number(min_value=1, max_value=1000, default=100)
    page = serializers.CharField(
        max_length=500, default="", help_text="The next_page of the previous response."
    )


FILTERS: Final[Mapping[str, str]] = {
    name: column for name, column in DIMENSIONS.items() if name not in {"key_id", "status"}
}


class TimeRangeParameters(ReportParameters):
    """A time range and filters. A date means the start of that day in the time zone ``tz``."""

    default_days = 7

    to = serializers.CharField(max_length=40, default="", help_text="End, exclusive. Default: now.")
    month = serializers.CharField(
        max_length=7,
        default="",
        help_text="A month of `tz`, instead of `from` and `to`: 2026-10, this or last.",
    )
    tz = serializers.CharField(max_length=64, default="UTC", help_text="IANA time zone.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields["from"] = serializers.CharField(  # "from" is a Python keyword
            max_length=40,
            default="",
            help_text=f"Start, inclusive: a date or RFC 3339. Default: {self.default_days} days.",
        )
        for name in FILTERS:
            fields[name] = Values(
                help_text=f"Only requests with these recorded values of {name!r}."
            )
        fields["outcome"] = Values(
            child=Choice(choices=Outcome.values), help_text="Only requests with these outcomes."
        )
        fields["key_id"] = Values(child=KeyId(), help_text="Only requests with these gateway keys.")
        fields["status"] = Values(
            child=Number(min_value=0, max_value=999),
            help_text="Only requests whose response had one of these HTTP statuses.",
        )
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        try:
            attrs["time_range"] = self.parse_time_range(attrs)
        except InvalidTimeRange as error:
            raise invalid_range(error) from None
        attrs["condition"] = filters_of(attrs, {**FILTERS, "key_id": "key_id", "status": "status"})
        return attrs

    def parse_time_range(self, attrs: Mapping[str, Any]) -> TimeRange:
        zone = load_zone(attrs["tz"])
        bucket = attrs.get("bucket", "all")
        if attrs["month"]:
            if attrs["from"] or attrs["to"]:
                raise InvalidTimeRange("month: use either month, or from and to")
            return build_time_range(*month_bounds(attrs["month"], zone, now()), bucket, zone)
        end = parse_instant(attrs["to"], zone, "to") if attrs["to"] else now()
        if attrs["from"]:
            start = parse_instant(attrs["from"], zone, "from")
        else:
            first = end.astimezone(zone).date() - (self.default_days - 1) * DAY
            start = midnight(first, zone)
        return build_time_range(start, end, bucket, zone)


def invalid_range(error: InvalidTimeRange) -> serializers.ValidationError:
    """Return the error of the parameter with which the message starts."""
    name, _, message = str(error).partition(": ")
    return serializers.ValidationError({name: message})


def filters_of(attrs: Mapping[str, Any], columns: Mapping[str, str]) -> Q:
    """Return the filters as a condition. ``columns``: parameter -> its column in the tables."""
    condition = Q()
    for name, column in columns.items():
        if attrs.get(name):
            condition &= Q(**{f"{column}__in": column_values(name, attrs[name])})
    return condition


def normalize_query(query: QueryDict) -> QueryDict:
    """Return the query with each ``name[]`` renamed to ``name``, which is the same parameter."""
    normalized = QueryDict(mutable=True)
    for name, values in query.lists():
        normalized.setlist(
            name.removesuffix("[]"), normalized.getlist(name.removesuffix("[]")) + list(values)
        )
    return normalized
