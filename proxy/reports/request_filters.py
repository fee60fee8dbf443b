"""What requests can be asked for by: any recorded field, all of them in tables.

Only ``preview`` is left out: its words are for those who may read transcripts.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db import connection
from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from rest_framework import serializers

from proxy.models import Exchange, State, TokenSource

from .parameters import Amount, Choice, Flag, Number, PageParameters, SpanParameters, Values
from .raw import CONTEXT_WINDOW
from .spans import BadSpan, moment, zone_named

TEXTS: Final[Mapping[str, str]] = {  # any of these values, as recorded
    "id": "id",
    "session": "session_id",
    "agent": "agent_id",
    "parent_agent": "parent_agent_id",
    "client_version": "client_version",
    "user_agent": "user_agent",
    "api_version": "api_version",
    "traceparent": "traceparent",
    "error_source": "error_source",
    "detail": "detail",
    "dialect": "dialect",
    "upstream_request_id": "upstream_request_id",
    "previous_request_id": "previous_id",
    "worker": "worker",
}
WHOLE: Final[Mapping[str, str]] = {"key_id": "key_id", "upstream_status": "upstream_status"}
SOURCES: Final[Mapping[str, str]] = {
    f"{name}_source": f"{name}_source"
    for name in ("input", "output", "cache_read", "cache_write", "reasoning")
}
NUMBERS: Final[Mapping[str, str]] = {  # min_ and max_; what is unknown is neither
    "ms": "total_ms",
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
    "stream": (Q(stream=True), "It was streamed."),
    "has_images": (Q(has_images=True), ""),
    "has_thinking": (Q(has_thinking=True), ""),
    "delivered": (Q(delivered=True), "The client was there to the end."),
    "has_notes": (~Q(notes=[]), "The translation changed something."),
    "has_unknown_events": (~Q(unknown_events={}), "The upstream said what we do not know."),
    "retried": (Q(attempts__1__isnull=False), "More than one upstream was called."),
    "priced": (Q(cost_nanousd__isnull=False), "Its cost is known."),
}
MEMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "tool": ("tool_names", "A tool it called."),
    "beta": ("betas", "A beta it named."),
}
LAST_CHARACTER: Final = "\U0010ffff"
COSTS: Final[Mapping[str, str]] = {"min_cost": "gte", "max_cost": "lte"}
ENDS: Final[Mapping[str, str]] = {"finished_from": "gte", "finished_to": "lt"}


def _number() -> serializers.IntegerField:
    return Number(min_value=0, max_value=2**62, required=False)


def _flag(about: str) -> Flag:
    return Flag(required=False, allow_null=True, default=None, help_text=about)


class RequestParameters(SpanParameters, PageParameters):
    """Any recorded field; newest first."""

    state = Choice(choices=State.values, required=False)
    ip = serializers.IPAddressField(required=False)
    error = serializers.CharField(
        max_length=200, required=False, help_text="A part of its error's message."
    )
    price_id = Number(min_value=0, max_value=2**62, required=False)
    tag = serializers.CharField(
        max_length=200, required=False, help_text="A tag it has, or name:value."
    )
    q = serializers.CharField(
        max_length=200,
        required=False,
        help_text="Its id or the upstream's, its key's name, team/key, "
        "or what its session begins with.",
    )

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().get_fields()
        fields |= {name: Values() for name in TEXTS}
        fields |= {name: Values(child=_number()) for name in WHOLE}
        fields |= {name: Values(child=Choice(choices=TokenSource.values)) for name in SOURCES}
        fields |= {f"{end}_{name}": _number() for name in NUMBERS for end in ("min", "max")}
        fields |= {name: _flag(about) for name, (_, about) in FLAGS.items()}
        for name, (_, about) in MEMBERS.items():
            fields[name] = serializers.CharField(max_length=200, required=False, help_text=about)
        for name in COSTS:
            fields[name] = Amount(
                max_digits=18,
                decimal_places=9,
                min_value=0,
                required=False,
                help_text="US dollars.",
            )
        for name in ENDS:
            fields[name] = serializers.CharField(
                max_length=40, required=False, help_text="When it ended: a date or RFC 3339."
            )
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        zone = zone_named(attrs["tz"])
        for name in ENDS:
            if attrs.get(name):
                try:
                    attrs[name] = moment(attrs[name], zone, name)
                except BadSpan as bad:
                    message = str(bad).partition(": ")[2]
                    raise serializers.ValidationError({name: message}) from None
        return attrs


def filtered(rows: QuerySet[Exchange], asked: Mapping[str, Any]) -> QuerySet[Exchange]:
    span = asked["span"]
    if asked.get("context_window"):  # the one filter that is no column here
        rows = rows.annotate(context_window=CONTEXT_WINDOW)
    rows = rows.filter(asked["condition"], created__gte=span.start, created__lt=span.end)
    rows = rows.filter(**dict(_lookups(asked)))
    if asked.get("q"):
        rows = rows.filter(_searched(asked["q"]))
    for name, (condition, _) in FLAGS.items():
        if asked.get(name) is not None:
            rows = rows.filter(condition) if asked[name] else rows.exclude(condition)
    for name, (column, _) in MEMBERS.items():
        if asked.get(name):
            rows = rows.filter(**{f"{column}__icontains": _quoted(asked[name])})
    return _tagged(rows, asked["tag"]) if asked.get("tag") else rows


def _lookups(asked: Mapping[str, Any]) -> "list[tuple[str, Any]]":
    found: list[tuple[str, Any]] = [
        (f"{column}__in", asked[name])
        for name, column in {**TEXTS, **WHOLE, **SOURCES}.items()
        if asked.get(name)
    ]
    for name, column in NUMBERS.items():
        for end, lookup in (("min", "gte"), ("max", "lte")):
            if asked.get(f"{end}_{name}") is not None:
                found.append((f"{column}__{lookup}", asked[f"{end}_{name}"]))
    for name, lookup in COSTS.items():
        if asked.get(name) is not None:
            found.append((f"cost_nanousd__{lookup}", _nanousd(asked[name])))
    for name, lookup in ENDS.items():
        if isinstance(asked.get(name), datetime):
            found.append((f"finished__{lookup}", asked[name]))
    plain = {
        "state": "state",
        "ip": "ip",
        "error": "error_message__icontains",
        "price_id": "price__id",
    }
    return [*found, *((look, asked[name]) for name, look in plain.items() if asked.get(name))]


def _nanousd(usd: Decimal) -> int:
    return int(usd.scaleb(9))


def _searched(term: str) -> Q:
    """By the rows alone: whether a key of that name exists elsewhere is nobody's business here."""
    team, slash, name = term.rpartition("/")
    of_key = Q(key_name=name, team=team) if slash else Q(key_name=term)
    of_session = Q(session_id__gte=term, session_id__lt=term + LAST_CHARACTER)
    return Q(pk=term) | Q(upstream_request_id=term) | of_key | of_session


def _tagged(rows: QuerySet[Exchange], tag: str) -> QuerySet[Exchange]:
    name, marked, value = tag.partition(":")
    if not marked:
        return rows.filter(tags__has_key=name)
    return rows.annotate(tag_value=Cast(KeyTextTransform(name, "tags"), TextField())).filter(
        tag_value=value
    )


def _quoted(text: str) -> str:
    """As the database keeps it inside a list: SQLite as Django wrote it, PostgreSQL in its own."""
    return json.dumps(text, ensure_ascii=connection.vendor == "sqlite")
