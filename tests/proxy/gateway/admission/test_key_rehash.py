"""Gateway keys stay valid when SECRET_KEY changes: their digests are replaced on use."""

import contextlib
import sqlite3
import time

import pytest
from django.conf import settings
from django.test import override_settings

from proxy.models import ApiKey
from proxy.permissions.key_rehash import rehash
from proxy.secrets import digest_of
from tests.proxy.gateway.budget_fixtures import BudgetTeam
from tests.proxy.gateway.conftest import message
from tests.proxy.gateway.http_client import GatewayClient, Reply

NEW = "a-new-secret-key-" * 4


@pytest.fixture
def issued(cleo: BudgetTeam, reload) -> tuple[ApiKey, str]:
    """A key whose digest was computed under the present SECRET_KEY."""
    key, secret = ApiKey.issue(
        cleo.team, f"rotated-{time.time_ns()}", scopes=["messages", "reports"]
    )
    reload()
    return key, secret


def use_for_messages(gateway: GatewayClient, priced: str, secret: str) -> Reply:
    return gateway.post(message(priced), x_api_key=secret)


def use_for_reports(gateway: GatewayClient, _: str, secret: str) -> Reply:
    return gateway.request("GET", "/api/v1/me/", headers={"x-api-key": secret})


def wait_for_digest(key: ApiKey, digest: bytes) -> None:
    deadline = time.monotonic() + 60
    while bytes(ApiKey.objects.get(pk=key.pk).digest) != digest:
        assert time.monotonic() < deadline, "the digest was not replaced"
        time.sleep(0.02)


@pytest.mark.parametrize("use", [use_for_messages, use_for_reports])
def test_a_key_is_rehashed_on_use_and_needs_no_old_secret_key_afterwards(
    gateway: GatewayClient, priced: str, issued, reload, use
):
    key, secret = issued
    old = settings.SECRET_KEY
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=["another-old-key" * 5, old]):
        assert use(gateway, priced, secret).status == 200
        assert use(gateway, priced, secret[:-1] + "x").status == 401
        wait_for_digest(key, digest_of(secret))
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[]):
        reload()
        assert use(gateway, priced, secret).status == 200


def test_without_the_old_secret_key_a_key_is_invalid(gateway: GatewayClient, priced: str, issued):
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[]):
        assert use_for_messages(gateway, priced, issued[1]).status == 401


def test_a_key_that_was_revoked_stays_invalid(gateway: GatewayClient, priced: str, issued, reload):
    key, secret = issued
    old = settings.SECRET_KEY
    key.revoked = key.created
    key.save()
    reload()

    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[old]):
        assert use_for_messages(gateway, priced, secret).status == 401


def test_a_key_with_a_new_secret_does_not_get_the_digest_of_the_old_one(issued):
    key, secret = issued
    old = digest_of(secret)
    key.give_secret()

    rehash(key.pk, old, b"d" * 32)

    assert bytes(ApiKey.objects.get(pk=key.pk).digest) == bytes(key.digest)


def test_requests_do_not_wait_while_the_database_cannot_store_a_new_digest(
    gateway: GatewayClient, priced: str, issued, database
):
    key, secret = issued
    old = settings.SECRET_KEY
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[old]):
        with contextlib.closing(sqlite3.connect(database / "ledger.sqlite3")) as other:
            other.execute("BEGIN IMMEDIATE")  # the thread that replaces the digest waits for this
            assert use_for_messages(gateway, priced, secret).status == 200
            assert use_for_messages(gateway, priced, secret).status == 200
            other.rollback()
        wait_for_digest(key, digest_of(secret))


def test_a_key_is_valid_while_the_ledger_is_missing_and_rehashed_later(
    gateway: GatewayClient, priced: str, issued, missing_ledger, caplog
):
    key, secret = issued
    old = settings.SECRET_KEY
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[old]):
        with missing_ledger():
            assert use_for_messages(gateway, priced, secret).status == 200
            deadline = time.monotonic() + 60
            while "keeps the digest of an earlier secret key" not in caplog.text:
                assert time.monotonic() < deadline, "the log does not name the key"
                time.sleep(0.02)
        assert use_for_messages(gateway, priced, secret).status == 200
        wait_for_digest(key, digest_of(secret))
