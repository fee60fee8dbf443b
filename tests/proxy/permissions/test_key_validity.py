"""Validity of keys: every reason for a refusal, and which of several is reported."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User

from proxy.models import ApiKey, Team
from proxy.models.setup.keys import secret_columns
from proxy.permissions.key_validity import MESSAGES, Reason, ends_of, refusal, refusals

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AGO, LATER = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)
TEAM = Team(pk=1, name="platform")
ADA, INACTIVE = User(pk=1, username="ada"), User(pk=2, username="left", is_active=False)


def key(**fields) -> ApiKey:
    return ApiKey(
        **{"pk": 1, "team": TEAM, "name": "ci", **secret_columns("sk-br-" + "k" * 43), **fields}
    )


def rotated(**fields) -> ApiKey:
    """The old secret of a rotated key, which stays valid for an overlap period."""
    return key(pk=2, expires=LATER, successor=key(**fields))


# name -> (the row, why it is refused)
TABLE = {
    "valid": (key(), None),
    "of a user": (key(user=ADA), None),
    "revoked": (key(revoked=AGO), Reason.REVOKED),
    "revoked at this instant": (key(revoked=NOW), Reason.REVOKED),
    "revoked from later on": (key(revoked=LATER), None),
    "expired": (key(expires=AGO), Reason.EXPIRED),
    "expired at this instant": (key(expires=NOW), Reason.EXPIRED),
    "expires later": (key(expires=LATER), None),
    "rotated, the old secret": (rotated(), None),
    "rotated, the overlap is over": (key(expires=AGO, successor=key()), Reason.EXPIRED),
    "rotated, the old secret revoked": (
        key(revoked=AGO, expires=LATER, successor=key()), Reason.REVOKED),
    "successor revoked": (rotated(revoked=AGO), Reason.REVOKED),
    "successor revoked from later on": (rotated(revoked=LATER), None),
    "successor expired": (rotated(expires=AGO), Reason.EXPIRED),
    "successor's user inactive": (rotated(user=INACTIVE), Reason.DEACTIVATED),
    "successor's user gone": (rotated(user_id=9), Reason.INCOMPLETE),
    "successor gone": (key(successor_id=9), Reason.INCOMPLETE),
    "user inactive": (key(user=INACTIVE), Reason.DEACTIVATED),
    "user gone": (key(user_id=9), Reason.INCOMPLETE),
    "team gone": (key(team=None), Reason.INCOMPLETE),
    "no secret": (key(prefix="", digest=None), Reason.EMPTY),
    "no secret, as earlier versions wrote it": (
        key(**secret_columns("not made yet: platform/ci") | {"prefix": ""}), Reason.EMPTY),
    "all at once": (
        key(revoked=AGO, expires=AGO, user=INACTIVE, prefix="", digest=None), Reason.REVOKED),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("name", TABLE)
def test_a_key_is_valid_or_refused_for_this_reason(name):
    row, reason = TABLE[name]

    assert refusal(ends_of(row), NOW.timestamp()) == reason


def test_all_reasons_are_returned_in_order():
    row = TABLE["all at once"][0]

    assert refusals(ends_of(row), NOW.timestamp()) == [
        Reason.REVOKED, Reason.DEACTIVATED, Reason.EXPIRED, Reason.EMPTY,
    ]  # fmt: skip
    assert set(MESSAGES) == set(Reason)
