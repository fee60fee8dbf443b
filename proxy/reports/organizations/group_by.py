"""Groups and filters of Anthropic's reports: Anthropic's dimensions and this gateway's own."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from django.db.models import Q

from proxy.ledger.maintenance.export import account_id, key_id, workspace_id
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.dimensions import column_values
from proxy.reports.core.time_ranges import TimeRange, load_zone
from proxy.reports.usage.exchange_queries import usage_by_minute, usage_from_requests
from proxy.reports.usage.rollup_queries import (
    COLUMN_OF,
    COUNT_NAMES,
    Counts,
    NoRollup,
    named_table,
    usage,
)

from .buckets import Window


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of ``group_by``: its name in /api/v1/ reports, and the format of its values."""

    name: str | None
    """None if the gateway does not record this dimension: its value is null in every row."""
    format_value: Callable[[Any], Any] = lambda value: value or None


ANTHROPIC_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "account_id": Dimension("user", account_id),
    "api_key_id": Dimension("key_id", key_id),
    "context_window": Dimension("context_window"),
    "inference_geo": Dimension(None),
    "model": Dimension("model"),
    "service_account_id": Dimension(None),
    "service_tier": Dimension("service_tier", lambda tier: tier or "standard"),
    "speed": Dimension(None),
    "workspace_id": Dimension("team", workspace_id),
}
OWN_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "team": Dimension("team"),
    "user": Dimension("user"),
    "key_name": Dimension("key"),
    "upstream": Dimension("upstream"),
    "model_upstream": Dimension("model_upstream"),
    "stop_reason": Dimension("stop_reason"),
    "client": Dimension("client"),
    "session": Dimension("session"),
}
DIMENSIONS: Final = {**ANTHROPIC_DIMENSIONS, **OWN_DIMENSIONS}

REQUESTED: Final = "requested"
UPSTREAM: Final = "upstream"
MODELS_AS: Final = (REQUESTED, UPSTREAM)
"""Which model name a report shows: the client's, or the name that was sent to the upstream."""

Results = dict[int, list[tuple[dict[str, Any], Counts]]]


def group_usage(
    reader: Reader,
    window: Window,
    groups: Sequence[str],
    condition: Q,
    counts: Sequence[str] = COUNT_NAMES,
    *,
    models_as: str = REQUESTED,
) -> Results:
    """Return (dimensions in the API's format, sums of ``counts``) by bucket number.

    If ``models_as`` is "upstream", ``model`` is the name that was sent to the upstream.
    """
    renamed = {"model": "model_upstream"} if models_as == UPSTREAM else {}
    # Two dimensions can be formats of one value: ``account_id`` and ``user``.
    value_names = {
        name: value_name
        for name in groups
        if (value_name := DIMENSIONS[renamed.get(name, name)].name) is not None
    }
    group_names = list(dict.fromkeys(value_names.values()))
    sums_by_key = _read_sums(reader, window, group_names, condition, counts)
    results: Results = {}
    for (number, key), sums in sorted(sums_by_key.items(), key=lambda one: str(one[0])):
        value_of = dict(zip(group_names, key, strict=True))
        dimensions = {
            name: DIMENSIONS[name].format_value(value_of[value_name])
            for name, value_name in value_names.items()
        }
        results.setdefault(number, []).append((dimensions, sums))
    return results


Sums = dict[tuple[int, tuple[Any, ...]], Counts]


def _read_sums(
    reader: Reader, window: Window, group_names: list[str], condition: Q, counts: Sequence[str]
) -> Sums:
    """Sum the rollup tables, or single requests if no rollup has the groups or the bucket."""
    if window.width != "1m":
        time_range = TimeRange(window.edges, window.width, load_zone("UTC"))
        with suppress(NoRollup):
            return usage(reader, time_range, group_names, condition, counts)
    return named_table(group_names, _from_requests(reader, window, group_names, condition))


def _from_requests(reader: Reader, window: Window, group_names: list[str], condition: Q) -> Sums:
    columns = [COLUMN_OF[name] for name in group_names]
    if window.width == "1m":
        number_of = {edge: number for number, edge in enumerate(window.edges)}
        table = usage_by_minute(reader, window.start, window.end, columns, condition)
        return {(number_of[start], key): sums for (start, key), sums in table.items()}
    return {
        (number, key): sums
        for number, (start, end) in enumerate(pairwise(window.edges))
        for key, sums in usage_from_requests(reader, start, end, columns, condition).items()
    }


def build_condition(query: Mapping[str, Any]) -> Q:
    """Return the values of Anthropic's filters as a condition. An unknown id matches no row."""
    condition = Q()
    renamed = {"models": "model_upstream"} if query.get("models_as") == UPSTREAM else {}
    for name, (column, parse) in FILTERS.items():
        if query.get(name):
            accepted = column_values(column, map(parse, query[name]))
            condition &= Q(**{f"{renamed.get(name, column)}__in": accepted})
    for name in ("inference_geos", "service_account_ids", "speeds"):
        if query.get(name) and query[name] not in (["not_available"], ["standard"]):
            condition &= Q(pk__in=())
    return condition


def _key_number(api_id: str) -> int:
    digits = api_id.removeprefix("apikey_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 18 else -1


def _strip_prefix(prefix: str) -> Callable[[str], str]:
    return lambda api_id: api_id.removeprefix(prefix) if api_id.startswith(prefix) else "\x00"


FILTERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "account_ids": ("user", _strip_prefix("user_")),
    "api_key_ids": ("key_id", _key_number),
    "workspace_ids": ("team", _strip_prefix("wrkspc_")),
    "models": ("model_requested", str),
    "service_tiers": ("service_tier", lambda tier: "" if tier == "standard" else tier),
    "context_window": ("context_window", str),
    "context_windows": ("context_window", str),
    "actor_ids": ("key_id", _key_number),
    "session_ids": ("session_id", str),
}
