"""A database from before brings no revoked key back to life."""

import stat
import time
from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.gateway import directory, revocations
from proxy.key_validity import refusal
from proxy.models import ApiKey, Revision
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where this node keeps its list, for a test of its own."""
    path = tmp_path / "revoked_keys"
    before = revocations.keep
    monkeypatch.setattr(revocations, "keep", lambda keys: before(keys, path))
    return path


def valid(key: ApiKey) -> bool:
    ends = directory.load_snapshot().keys[bytes(key.digest)].ends
    return refusal(ends, time.time()) is None


def restore(key: ApiKey) -> None:
    """What a backup of before the revocation does to its row."""
    ApiKey.objects.filter(pk=key.pk).update(revoked=None)


def test_a_restored_key_is_revoked_again_in_the_database_too(kept):
    key, _ = cast.key("mallory")
    other, _ = cast.key("ben")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    assert not valid(key)

    restore(key)

    assert not valid(key)
    assert ApiKey.objects.get(pk=key.pk).revoked is not None  # the reports read the row
    assert valid(other)


def test_the_list_is_private_and_holds_no_key(kept):
    key, secret = cast.key("mallory")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    for _ in range(3):
        directory.load_snapshot()

    assert kept.read_text() == bytes(key.digest).hex() + "+\n"
    assert secret not in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_key_that_ends_later_is_not_on_the_list_yet(kept):
    key, _ = cast.key("ben")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now() + timedelta(days=1))

    assert valid(key)
    assert not kept.exists()


def test_a_key_that_was_revoked_although_the_file_declares_it_stays_so(kept):
    key, _ = cast.key("ci", managed=True)
    before = Revision.current()
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    assert not valid(key)

    restore(key)

    assert not valid(key)
    assert ApiKey.objects.get(pk=key.pk).revoked is not None
    assert Revision.current() > before  # a node that has no such entry reads its keys again


def test_a_key_without_a_secret_is_not_on_the_list(kept):
    key, _ = cast.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now(), prefix="", digest=None)

    known = directory.load_snapshot().keys.values()

    assert key.pk not in {caller.key_id for caller in known}
    assert not kept.exists()


def test_a_list_of_an_earlier_version_counts_but_not_against_the_file(kept):
    """It could not tell a key that the file had dropped from one that was revoked by hand."""
    key, _ = cast.key("mallory")
    filed, _ = cast.key("ci", managed=True)
    kept.write_text("".join(f"{bytes(one.digest).hex()}\n" for one in (key, filed)))

    assert (valid(key), valid(filed)) == (False, True)


def test_a_key_that_the_file_declares_again_is_valid(kept):
    key, _ = cast.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now(), dropped=True)
    directory.load_snapshot()

    ApiKey.objects.filter(pk=key.pk).update(revoked=None, managed=True)

    assert valid(key)


def test_a_list_that_cannot_be_read_or_written_stops_nobody(kept):
    key, _ = cast.key("mallory")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    kept.mkdir()

    assert not valid(key)
