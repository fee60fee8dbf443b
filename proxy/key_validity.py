"""Whether a gateway key is in force: the one decision, for the gateway and for the reports.

A key may end for several reasons, each at an instant; it is in force while none has come. The
gateway keeps the ends of each key in its snapshot, all others take them from the row.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from django.core.exceptions import ObjectDoesNotExist

from proxy.models import ApiKey


class Reason(StrEnum):
    """Why a key is refused, the one that is reported first at the top."""

    REVOKED = "revoked"
    DEACTIVATED = "user deactivated"
    EXPIRED = "expired"
    INCOMPLETE = "incomplete"  # its team, user or successor is not in the database
    EMPTY = "no secret"


INVALID: Final = "invalid gateway key"
MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.REVOKED: "this gateway key was revoked",
    Reason.DEACTIVATED: "the user of this gateway key is deactivated",
    Reason.EXPIRED: "this gateway key has expired",
    Reason.INCOMPLETE: INVALID,
    Reason.EMPTY: INVALID,  # as for an unknown key: a guess learns nothing
}
"""What the client of a refused key is answered, with 401."""

ALWAYS: Final = -math.inf


RELATED: Final = ("team", "user", "successor__team", "successor__user")
"""What to select with a key, so that its ends need no other query."""


class End(NamedTuple):
    """From ``at`` (Unix seconds) on the key is refused."""

    reason: Reason
    at: float


def ends_of(key: ApiKey) -> tuple[End, ...]:
    """Return every end of the key, in the order of ``Reason``; empty: it is valid for good.

    A rotated secret that goes on for a while ends with its successor, too. Reads the rows of
    ``RELATED``.
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
    """Return why a key with these ends is refused at ``now``; empty: it is in force."""
    return [end.reason for end in ends if end.at <= now]


def refusal(ends: Iterable[End], now: float) -> Reason | None:
    """Return the reason that is reported; None: the key is in force."""
    return next(iter(refusals(ends, now)), None)


def _is_incomplete(key: ApiKey) -> bool:
    return _related(key, "team") is None or any(
        getattr(key, f"{name}_id") is not None and _related(key, name) is None
        for name in ("user", "successor")
    )


def _related(key: ApiKey, name: str) -> Any:
    """Return the row that a field points to; None where it points to none, or none is there."""
    try:
        return getattr(key, name)
    except ObjectDoesNotExist:
        return None
