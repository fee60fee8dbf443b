"""Whether a key is in force: the whole table of reasons, and which of several is reported."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User

from proxy.key_validity import MESSAGES, Reason, ends_of, refusal, refusals
from proxy.models import ApiKey, Team
from proxy.models.keys import stored_of

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AGO, LATER = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)
TEAM = Team(pk=1, name="platform")
ADA, LEFT = User(pk=1, username="ada"), User(pk=2, username="left", is_active=False)


def key(**fields) -> ApiKey:
    return ApiKey(
        **{"pk": 1, "team": TEAM, "name": "ci", **stored_of("sk-br-" + "k" * 43), **fields}
    )


def old(**fields) -> ApiKey:
    """The old secret of a rotated key, which goes on for a while."""
    return key(pk=2, expires=LATER, successor=key(**fields))


# what the row holds -> why it is refused
TABLE = {
    "valid": (key(), None),
    "of a user": (key(user=ADA), None),
    "revoked": (key(revoked=AGO), Reason.REVOKED),
    "revoked at this instant": (key(revoked=NOW), Reason.REVOKED),
    "revoked from later on": (key(revoked=LATER), None),
    "expired": (key(expires=AGO), Reason.EXPIRED),
    "expired at this instant": (key(expires=NOW), Reason.EXPIRED),
    "expires later": (key(expires=LATER), None),
    "rotated, the old secret": (old(), None),
    "rotated, the overlap is over": (key(expires=AGO, successor=key()), Reason.EXPIRED),
    "rotated, the old secret revoked": (
        key(revoked=AGO, expires=LATER, successor=key()), Reason.REVOKED),
    "successor revoked": (old(revoked=AGO), Reason.REVOKED),
    "successor revoked from later on": (old(revoked=LATER), None),
    "successor expired": (old(expires=AGO), Reason.EXPIRED),
    "successor's user inactive": (old(user=LEFT), Reason.DEACTIVATED),
    "successor's user gone": (old(user_id=9), Reason.INCOMPLETE),
    "successor gone": (key(successor_id=9), Reason.INCOMPLETE),
    "user inactive": (key(user=LEFT), Reason.DEACTIVATED),
    "user gone": (key(user_id=9), Reason.INCOMPLETE),
    "team gone": (key(team=None), Reason.INCOMPLETE),
    "no secret": (key(prefix="", digest=None), Reason.EMPTY),
    "no secret, as earlier versions wrote it": (
        key(**stored_of("not made yet: platform/ci") | {"prefix": ""}), Reason.EMPTY),
    "all at once": (
        key(revoked=AGO, expires=AGO, user=LEFT, prefix="", digest=None), Reason.REVOKED),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("name", TABLE)
def test_a_key_is_in_force_or_refused_for_this_reason(name):
    row, reason = TABLE[name]

    assert refusal(ends_of(row), NOW.timestamp()) == reason


def test_all_reasons_are_there_in_the_order_of_the_table():
    row = TABLE["all at once"][0]

    assert refusals(ends_of(row), NOW.timestamp()) == [
        Reason.REVOKED, Reason.DEACTIVATED, Reason.EXPIRED, Reason.EMPTY,
    ]  # fmt: skip
    assert set(MESSAGES) == set(Reason)
