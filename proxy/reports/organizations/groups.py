"""What the compatible reports group and filter by: Anthropic's names, then ours."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from django.db.models import Q

from proxy.record.export import account_id, key_id, workspace_id
from proxy.reports.raw import raw_minutes, raw_usage
from proxy.reports.spans import Span, zone_named
from proxy.reports.sums import SUMMED, NoRollup, Sums, usage
from proxy.visibility import Reader

from .windows import Window


@dataclass(frozen=True, slots=True)
class Dimension:
    """One name of ``group_by``: our name for it, and how its value looks on the wire."""

    ours: str | None
    """None: we record no such thing; its value is null and it groups nothing."""
    wire: Callable[[Any], Any] = lambda value: value or None
    column: str = ""
    """The column of Exchange, where the rollups have none."""


THEIRS: Final[Mapping[str, Dimension]] = {
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
OURS: Final[Mapping[str, Dimension]] = {
    "team": Dimension("team"),
    "user": Dimension("user"),
    "key_name": Dimension("key"),
    "upstream": Dimension("upstream"),
    "model_upstream": Dimension("model_upstream"),
    "stop_reason": Dimension("stop_reason"),
    "client": Dimension("client"),
    "session": Dimension("session", column="session_id"),
}
ALL: Final = {**THEIRS, **OURS}

REQUESTED: Final = "requested"
UPSTREAM: Final = "upstream"
MODELS_AS: Final = (REQUESTED, UPSTREAM)
"""Whose name of a model counts: the client's, or the one that its upstream was asked for."""

Results = dict[int, list[tuple[dict[str, Any], Sums]]]


def grouped(
    reader: Reader,
    window: Window,
    groups: Sequence[str],
    condition: Q,
    counts: Sequence[str] = SUMMED,
    *,
    models_as: str = REQUESTED,
) -> Results:
    """By number of the bucket: the dimensions as the wire says them, and the sums of ``counts``.

    ``models_as`` upstream: ``model`` is the name that the upstream was asked for.
    """
    names = [name for name in dict.fromkeys(groups) if ALL[name].ours is not None]
    renamed = {"model": "model_upstream"} if models_as == UPSTREAM else {}
    kept = list(dict.fromkeys(renamed.get(name, name) for name in names))
    found = _gathered(reader, window, kept, condition, counts)
    results: Results = {}
    for (number, key), sums in sorted(found.items(), key=lambda one: str(one[0])):
        value_of = dict(zip(kept, key, strict=True))
        said = {name: ALL[name].wire(value_of[renamed.get(name, name)]) for name in names}
        results.setdefault(number, []).append((said, sums))
    return results


Gathered = dict[tuple[int, tuple[Any, ...]], Sums]


def _gathered(
    reader: Reader, window: Window, kept: list[str], condition: Q, counts: Sequence[str]
) -> Gathered:
    """From the rollups; from the requests where no rollup knows the groups or the minutes."""
    if window.width != "1m":
        span = Span(window.edges, window.width, zone_named("UTC"))
        with suppress(NoRollup):
            return usage(reader, span, [str(ALL[name].ours) for name in kept], condition, counts)
    return _from_requests(reader, window, kept, condition)


ROW_COLUMNS: Final = {"model": "model_requested", "key": "key_name", "client": "client_name"}


def _from_requests(reader: Reader, window: Window, kept: list[str], condition: Q) -> Gathered:
    named = [ALL[name].column or str(ALL[name].ours) for name in kept]
    columns = [ROW_COLUMNS.get(name, name) for name in named]
    if window.width == "1m":
        place = {edge: number for number, edge in enumerate(window.edges)}
        table = raw_minutes(reader, window.start, window.end, columns, condition)
        return {(place[start], key): sums for (start, key), sums in table.items()}
    return {
        (number, key): sums
        for number, (start, end) in enumerate(pairwise(window.edges))
        for key, sums in raw_usage(reader, start, end, columns, condition).items()
    }


def filters(asked: Mapping[str, Any]) -> Q:
    """Anthropic's filters as a condition. An id that is none of ours matches nothing."""
    condition = Q()
    renamed = {"models": "model_upstream"} if asked.get("models_as") == UPSTREAM else {}
    for name, (column, read) in FILTERS.items():
        if asked.get(name):
            wanted = [read(value) for value in asked[name]]
            condition &= Q(**{f"{renamed.get(name, column)}__in": wanted})
    for name in ("inference_geos", "service_account_ids", "speeds"):
        if asked.get(name) and asked[name] not in (["not_available"], ["standard"]):
            condition &= Q(pk__in=())
    return condition


def _key_number(ident: str) -> int:
    digits = ident.removeprefix("apikey_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 18 else -1


def _after(mark: str) -> Callable[[str], str]:
    return lambda ident: ident.removeprefix(mark) if ident.startswith(mark) else "\x00"


FILTERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "account_ids": ("user", _after("user_")),
    "api_key_ids": ("key_id", _key_number),
    "workspace_ids": ("team", _after("wrkspc_")),
    "models": ("model_requested", str),
    "service_tiers": ("service_tier", lambda tier: "" if tier == "standard" else tier),
    "context_window": ("context_window", str),
    "context_windows": ("context_window", str),
    "actor_ids": ("key_id", _key_number),
    "session_ids": ("session_id", str),
}
