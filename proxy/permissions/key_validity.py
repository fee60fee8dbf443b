"""Check the validity of gateway keys, for the gateway and for the reports API.

A key becomes invalid for one of several reasons (``Reason``), each from a point in time on
(``End``). The gateway has the ends of each key in memory; other code computes them from the row.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from django.core.exceptions import ObjectDoesNotExist

from proxy.models import ApiKey


class Reason(StrEnum):
    """Why the gateway rejects a key. Of several reasons, the first member is reported."""

    REVOKED = "revoked"
    DEACTIVATED = "user deactivated"
    EXPIRED = "expired"
    INCOMPLETE = "incomplete"  # the key's team, user or successor is not in the database
    EMPTY = "no secret"


INVALID: Final = "invalid gateway key"
MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.REVOKED: "this gateway key was revoked",
    Reason.DEACTIVATED: "the user of this gateway key is deactivated",
    Reason.EXPIRED: "this gateway key has expired",
    Reason.INCOMPLETE: INVALID,
    # The message is that for an unknown key, so that a guessed key reveals nothing.
    Reason.EMPTY: INVALID,
}
"""The error message of the 401 response to a client with an invalid key."""

ALWAYS: Final = -math.inf


RELATED: Final = ("team", "user", "successor__team", "successor__user")
"""Arguments of ``select_related``, so that ``ends_of`` makes no further query."""


class End(NamedTuple):
    """A reason why a key is invalid from ``at`` (Unix seconds) on."""

    reason: Reason
    at: float


def ends_of(key: ApiKey) -> tuple[End, ...]:
    """Return every end of the key, in the order of ``Reason``; empty if it is valid for ever.

    A key that has the replaced secret of a rotated key also ends when that key, its successor,
    ends. The function reads the related rows in ``RELATED``.
    """
    successor = _related(key, "successor")
    both = (key, successor) if successor is not None else (key,)
    users = [user for one in both if (user := _related(one, "user")) is not None]
    return (
        *(End(Reason.REVOKED, one.revoked.timestamp()) for one in both if one.revoked),
        *(End(Reason.DEACTIVATED, ALWAYS) for user in users if not user.is_active),
        *(End(Reason.EXPIRED, one.expires.timestamp()) for one in both if one.expires),
        *(End(Reason.INCOMPLETE, ALWAYS) for one in both if _is_incomplete(one)),
        *(() if key.has_secret else (End(Reason.EMPTY, ALWAYS),)),
    )


def refusals(ends: Iterable[End], now: float) -> list[Reason]:
    """Return all reasons why a key with these ends is invalid at ``now``; empty if it is valid."""
    return [end.reason for end in ends if end.at <= now]


def refusal(ends: Iterable[End], now: float) -> Reason | None:
    """Return the first reason why a key with these ends is invalid at ``now``; None if valid."""
    return next(iter(refusals(ends, now)), None)


def _is_incomplete(key: ApiKey) -> bool:
    return _related(key, "team") is None or any(
        getattr(key, f"{name}_id") is not None and _related(key, name) is None
        for name in ("user", "successor")
    )


def _related(key: ApiKey, name: str) -> Any:
    """Return the row of a foreign key; None if the field is empty or the row is missing."""
    try:
        return getattr(key, name)
    except ObjectDoesNotExist:
        return None
