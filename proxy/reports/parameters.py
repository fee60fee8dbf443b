"""What reports may be asked. Each parameter is checked; a wrong or unknown one is a clear 400."""

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NoReturn

from django.db.models import Q
from django.http import QueryDict
from django.utils.timezone import now
from rest_framework import serializers

from proxy.models import Outcome

from .answers import FORMATS
from .spans import BUCKETS, DAY, BadSpan, Span, midnight, moment, span_of, zone_named
from .sums import DIMENSIONS

LONGEST: Final = 200  # characters of one value
MOST_VALUES: Final = 50
MOST_GROUPS: Final = 4


class Choice(serializers.ChoiceField):
    """One of some words; a complaint lists them."""

    default_error_messages: ClassVar = {
        "invalid_choice": '"{input}" is not a valid choice; known: {known}'
    }

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        super().fail(key, known=", ".join(map(str, self.choices)), **kwargs)


class Quoting(serializers.Field[Any, Any, Any, Any]):
    """What cannot be read is told as it came: DRF only says that it is not valid."""

    wanted: ClassVar[str]

    def to_internal_value(self, data: Any) -> Any:
        try:
            return super().to_internal_value(data)
        except serializers.ValidationError:
            told = f"{str(data)[:60]!r} is no {self.wanted}"
            raise serializers.ValidationError(told) from None


class Amount(Quoting, serializers.DecimalField):
    """Dollars."""

    wanted = "amount of at most 18 digits, 9 of them behind the point"


class Flag(serializers.BooleanField):
    default_error_messages: ClassVar = {"invalid": '"{input}" is neither true nor false'}


class Number(Quoting, serializers.IntegerField):
    """A whole number within bounds; a complaint tells it, and the bound."""

    wanted = "whole number"
    default_error_messages: ClassVar = {
        "min_value": "%(value)s is too little; {min_value} or more is expected",
        "max_value": "%(value)s is too much; {max_value} or less is expected",
    }


class Values(serializers.ListField):
    """Several values: repeated, ``name[]=``, or with commas."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("child", serializers.CharField(max_length=LONGEST))
        super().__init__(required=False, max_length=MOST_VALUES, **kwargs)

    def to_internal_value(self, data: Any) -> list[Any]:
        parts = [part.strip() for text in data for part in str(text).split(",")]
        return super().to_internal_value([part for part in parts if part])


class ReportParameters(serializers.Serializer[Any]):
    """Every report: the shape of the answer."""

    format = Choice(choices=FORMATS, default="json")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        known = set(self.fields)
        for name in self.initial_data:
            if name not in known:
                near = difflib.get_close_matches(name[:60], known, 1)
                hint = f"did you mean {near[0]!r}? Known here" if near else "known here"
                message = f"unknown parameter; {hint}: {', '.join(sorted(known))}"
                raise serializers.ValidationError({name[:60]: message})
        return attrs


class OnlyJson(ReportParameters):
    """What has no table's form."""

    format = Choice(choices=("json",), default="json")


class PageParameters(ReportParameters):
    limit = Number(min_value=1, max_value=1000, default=100)
    page = serializers.CharField(
        max_length=500, default="", help_text="The next_page of the answer before."
    )


FILTERS: Final[Mapping[str, str]] = {
    name: column for name, column in DIMENSIONS.items() if name not in {"key_id", "status"}
}


class SpanParameters(ReportParameters):
    """A stretch of time and filters; a date means its first moment in ``tz``."""

    default_days = 7

    to = serializers.CharField(max_length=40, default="", help_text="End, exclusive. Default: now.")
    tz = serializers.CharField(max_length=64, default="UTC", help_text="IANA time zone.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields["from"] = serializers.CharField(  # a name that Python keeps for itself
            max_length=40,
            default="",
            help_text=f"Start, inclusive: a date or RFC 3339. Default: {self.default_days} days.",
        )
        for name in FILTERS:
            fields[name] = Values(help_text=f"Only these; compared with {name!r} as recorded.")
        fields["outcome"] = Values(child=Choice(choices=Outcome.values))
        fields["status"] = Values(child=Number(min_value=0, max_value=999))
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        try:
            attrs["span"] = self.read_span(attrs)
        except BadSpan as bad:
            name, _, message = str(bad).partition(": ")
            raise serializers.ValidationError({name: message}) from None
        attrs["condition"] = condition_of(attrs)
        return attrs

    def read_span(self, attrs: Mapping[str, Any]) -> Span:
        zone = zone_named(attrs["tz"])
        end = moment(attrs["to"], zone, "to") if attrs["to"] else now()
        if attrs["from"]:
            start = moment(attrs["from"], zone, "from")
        else:
            first = end.astimezone(zone).date() - (self.default_days - 1) * DAY
            start = midnight(first, zone)
        return span_of(start, end, attrs.get("bucket", "all"), zone)


def condition_of(attrs: Mapping[str, Any]) -> Q:
    """The filters as a condition that holds for rollups and for requests alike."""
    condition = Q()
    for name, column in {**FILTERS, "status": "status"}.items():
        if attrs.get(name):
            condition &= Q(**{f"{column}__in": attrs[name]})
    return condition


class GroupParameters(SpanParameters, PageParameters):
    """Buckets and groups. The groups of an answer are its rows."""

    bucket = Choice(choices=BUCKETS, default="1d")
    group_by = Values(child=Choice(choices=sorted(DIMENSIONS)))
    limit = Number(min_value=1, max_value=10_000, default=1000)

    def validate_group_by(self, value: list[str]) -> list[str]:
        if len(value) > MOST_GROUPS:
            raise serializers.ValidationError(f"at most {MOST_GROUPS} at once")
        return list(dict.fromkeys(value))


def plain_query(query: QueryDict) -> QueryDict:
    """``group_by[]=a`` and ``group_by=a`` are the same parameter."""
    plain = QueryDict(mutable=True)
    for name, values in query.lists():
        plain.setlist(
            name.removesuffix("[]"), plain.getlist(name.removesuffix("[]")) + list(values)
        )
    return plain
