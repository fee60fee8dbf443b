"""Filters of the request list: every recorded field has one.

The exceptions are ``preview`` and ``prompt``: they are text of the conversation, and reading that
requires the permission to read transcripts.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from rest_framework import serializers

from proxy.models import Exchange, State, TokenSource
from proxy.models.ledger_names import key_ids
from proxy.money import nanousd_of
from proxy.reports.core.expansion import REQUEST_PATHS, expand_parameter
from proxy.reports.core.pagination import KeysetParameters, only_values
from proxy.reports.core.query_parameters import (
    Amount,
    Choice,
    Flag,
    Number,
    Values,
    invalid_range,
)
from proxy.reports.core.time_ranges import InvalidTimeRange, load_zone, parse_instant
from proxy.reports.usage.exchange_queries import CONTEXT_WINDOW

TEXTS: Final[Mapping[str, str]] = {  # parameter -> column; accepts several values
    "id": "id",
    "session_id": "session_id",
    "agent_id": "agent_id",
    "parent_agent_id": "parent_agent_id",
    "client_version": "client_version",
    "user_agent": "user_agent",
    "api_version": "api_version",
    "traceparent": "traceparent",
    "error_source": "error_source",
    "error_code": "detail",
    "dialect": "dialect",
    "upstream_request_id": "upstream_request_id",
    "previous_request_id": "previous_id",
    "worker": "worker",
    "speed": "speed",
    "inference_geo": "inference_geo",
}
INTEGERS: Final[Mapping[str, str]] = {"upstream_status": "upstream_status"}
SOURCES: Final[Mapping[str, str]] = {
    f"{name}_source": f"{name}_source"
    for name in ("input", "output", "cache_read", "cache_write", "reasoning")
}
# Each has a min_ and a max_ parameter, which null does not match.
NUMBERS: Final[Mapping[str, str]] = {
    "total_ms": "total_ms",
    "ttft_ms": "ttft_ms",
    "upstream_ms": "upstream_ms",
    "overhead_ms": "overhead_ms",
    "queue_ms": "queue_ms",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_write_5m_tokens": "cache_write_5m_tokens",
    "cache_write_1h_tokens": "cache_write_1h_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "web_search_requests": "web_searches",
    "tool_calls": "tool_calls",
    "message_count": "message_count",
    "new_from": "new_from",
    "request_bytes": "request_bytes",
    "response_bytes": "response_bytes",
}
FLAGS: Final[Mapping[str, tuple[Q, str]]] = {
    "stream": (Q(stream=True), "The response was streamed."),
    "has_images": (Q(has_images=True), "The request contains images."),
    "has_thinking": (Q(has_thinking=True), "The response contains thinking."),
    "delivered": (Q(delivered=True), "The client received the whole response."),
    "has_notes": (~Q(notes=[]), "The translation changed the request."),
    "has_unknown_events": (~Q(unknown_events={}), "The upstream sent unknown events."),
    "has_iterations": (~Q(iterations=[]), "The response was sampled in several billed steps."),
    "retried": (Q(attempts__1__isnull=False), "The request had more than one attempt."),
    "priced": (Q(cost_nanousd__isnull=False), "The cost is known."),
}
LIST_MEMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "tool": ("tool_names", "Name of a tool that the response called."),
    "beta": ("betas", "Name of a beta feature in the request."),
}
READ_TO_END: Final = {"read_to_end", "heard_out"}  # the second is the word of 1.0
LAST_CHARACTER: Final = "\U0010ffff"
COSTS: Final[Mapping[str, str]] = {"min_cost_usd": "gte", "max_cost_usd": "lte"}
FINISHED_BOUNDS: Final[Mapping[str, str]] = {"finished_from": "gte", "finished_to": "lt"}

ENDS: Final[Mapping[str, str]] = {"min": "at least", "max": "at most"}


def _number(description: str = "") -> serializers.IntegerField:
    return Number(min_value=0, max_value=2**62, required=False, help_text=description)


def _only(name: str) -> str:
    return f"Only requests with one of these values of `{name}`."


def _flag(description: str) -> Flag:
    return Flag(required=False, allow_null=True, default=None, help_text=description)


class RequestParameters(KeysetParameters):
    """Parameters of the request list: a filter for every recorded field."""

    expand = expand_parameter(REQUEST_PATHS)

    state = Choice(choices=State.values, required=False, help_text="Only requests in this state.")
    ip = serializers.IPAddressField(
        required=False, help_text="Only requests from this client address."
    )
    error_message = serializers.CharField(
        max_length=200, required=False, help_text="Part of the error message."
    )
    price_id = _number("Only requests with this price: the `id` of `price`.")
    tag = serializers.CharField(
        max_length=200, required=False, help_text="Name of a tag, or name:value."
    )
    q = serializers.CharField(
        max_length=200,
        required=False,
        help_text="Search: request id, upstream request id, key name, team/key, "
        "or the start of the session id.",
    )

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().get_fields()
        fields |= {name: Values(help_text=_only(name)) for name in TEXTS}
        fields |= {name: Values(child=_number(), help_text=_only(name)) for name in INTEGERS}
        fields |= {
            name: Values(child=Choice(choices=TokenSource.values), help_text=_only(name))
            for name in SOURCES
        }
        fields |= {
            f"{end}_{name}": _number(f"Only requests whose `{name}` is {meaning} this.")
            for name in NUMBERS
            for end, meaning in ENDS.items()
        }
        fields |= {name: _flag(description) for name, (_, description) in FLAGS.items()}
        for name, (_, description) in LIST_MEMBERS.items():
            fields[name] = serializers.CharField(
                max_length=200, required=False, help_text=description
            )
        for name in COSTS:
            fields[name] = Amount(
                max_digits=18,
                decimal_places=9,
                min_value=0,
                required=False,
                help_text="The lowest or the highest `cost_usd`, in US dollars.",
            )
        for name in FINISHED_BOUNDS:
            fields[name] = serializers.CharField(
                max_length=40, required=False, help_text="End of the request: a date or RFC 3339."
            )
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        zone = load_zone(attrs["tz"])
        for name in FINISHED_BOUNDS:
            if attrs.get(name):
                try:
                    attrs[name] = parse_instant(attrs[name], zone, name)
                except InvalidTimeRange as error:
                    raise invalid_range(error) from None
        return attrs


def filter_requests(rows: QuerySet[Exchange], query: Mapping[str, Any]) -> QuerySet[Exchange]:
    time_range = query["time_range"]
    if query.get("context_window"):  # context_window is computed, not stored
        rows = rows.annotate(context_window=CONTEXT_WINDOW)
    rows = rows.filter(
        query["condition"], created__gte=time_range.start, created__lt=time_range.end
    )
    if READ_TO_END & {*(query.get("error_code") or ())}:
        query = {**query, "error_code": [*query["error_code"], *READ_TO_END]}
    rows = only_values(rows, query, {**TEXTS, **INTEGERS, **SOURCES})
    rows = rows.filter(**dict(_field_lookups(query)))
    if query.get("q"):
        rows = rows.filter(search_condition(query["q"]))
    for name, (condition, _) in FLAGS.items():
        if query.get(name) is not None:
            rows = rows.filter(condition) if query[name] else rows.exclude(condition)
    for name, (column, _) in LIST_MEMBERS.items():
        if query.get(name):
            rows = rows.filter(_has_member(column, query[name]))
    return _filter_by_tag(rows, query["tag"]) if query.get("tag") else rows


def _field_lookups(query: Mapping[str, Any]) -> "list[tuple[str, Any]]":
    lookups: list[tuple[str, Any]] = []
    for name, column in NUMBERS.items():
        for end, lookup in (("min", "gte"), ("max", "lte")):
            if query.get(f"{end}_{name}") is not None:
                lookups.append((f"{column}__{lookup}", query[f"{end}_{name}"]))
    for name, lookup in COSTS.items():
        if query.get(name) is not None:
            lookups.append((f"cost_nanousd__{lookup}", nanousd_of(query[name])))
    for name, lookup in FINISHED_BOUNDS.items():
        if isinstance(query.get(name), datetime):
            lookups.append((f"finished__{lookup}", query[name]))
    plain = {
        "state": "state",
        "ip": "ip",
        "error_message": "error_message__icontains",
        "price_id": "price__id",
    }
    return [*lookups, *((look, query[name]) for name, look in plain.items() if query.get(name))]


def search_condition(term: str) -> Q:
    """Match a request id, a key by its present name, or a session.

    The condition is combined with the rows that the caller may see, so a search reveals nothing
    about other keys. The id of a request is searched alone: with the other conditions, the database
    would read all rows of the time range.
    """
    if Exchange.objects.filter(pk=term).exists():
        return Q(pk=term)
    team, slash, name = term.rpartition("/")
    of_key = Q(key_id__in=key_ids(name, team) if slash else key_ids(term))
    of_session = Q(session_id__gte=term, session_id__lt=term + LAST_CHARACTER)
    return Q(pk=term) | Q(upstream_request_id=term) | of_key | of_session


def _filter_by_tag(rows: QuerySet[Exchange], tag: str) -> QuerySet[Exchange]:
    name, separator, value = tag.partition(":")
    if not separator:
        return rows.filter(tags__has_key=name)
    return rows.annotate(tag_value=Cast(KeyTextTransform(name, "tags"), TextField())).filter(
        tag_value=value
    )


def _has_member(column: str, text: str) -> Q:
    """Match the rows whose JSON list contains a string with this text.

    PostgreSQL compares decoded text. SQLite has Django's JSON, which is ASCII with
    escapes.
    """
    spellings = {json.dumps(text, ensure_ascii=is_ascii) for is_ascii in (True, False)}
    condition = Q(pk__in=())
    for spelling in spellings:
        condition |= Q(**{f"{column}__icontains": spelling})
    return condition
