"""Restoring an older database does not reactivate a revoked key."""

import stat
import time
from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.gateway.snapshot import config_snapshot, revoked_keys_file
from proxy.models import ApiKey, Revision
from proxy.permissions.key_validity import refusal
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def revoked_file(tmp_path, settings):
    """Use a temporary path for the node's list of revoked keys."""
    settings.DATA_DIR = tmp_path
    return tmp_path / revoked_keys_file.FILE_NAME


def valid(key: ApiKey) -> bool:
    expiries = config_snapshot.load_snapshot().keys[bytes(key.digest)].ends
    return refusal(expiries, time.time()) is None


def restore(key: ApiKey) -> None:
    """Reset the row to its state before the revocation, as an older backup does."""
    ApiKey.objects.filter(pk=key.pk).update(revoked=None)


def test_restored_key_is_revoked_again_in_the_database(revoked_file):
    key, _ = factories.key("mallory")
    other, _ = factories.key("ben")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    assert not valid(key)

    restore(key)

    assert not valid(key)
    assert ApiKey.objects.get(pk=key.pk).revoked is not None  # the reports use this column
    assert valid(other)


def test_revocation_list_is_private_and_has_no_secret(revoked_file):
    key, secret = factories.key("mallory")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    for _ in range(3):
        config_snapshot.load_snapshot()

    assert revoked_file.read_text() == bytes(key.digest).hex() + "+\n"
    assert secret not in revoked_file.read_text()
    assert stat.S_IMODE(revoked_file.stat().st_mode) == 0o600


def test_key_with_a_future_revocation_is_not_listed(revoked_file):
    key, _ = factories.key("ben")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now() + timedelta(days=1))

    assert valid(key)
    assert not revoked_file.exists()


def test_key_revoked_by_hand_stays_revoked_although_the_file_declares_it(revoked_file):
    key, _ = factories.key("ci", managed=True)
    original = Revision.current()
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    assert not valid(key)

    restore(key)

    assert not valid(key)
    assert ApiKey.objects.get(pk=key.pk).revoked is not None
    assert Revision.current() > original  # nodes without this entry reload their keys


def test_key_without_a_secret_is_not_listed(revoked_file):
    key, _ = factories.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now(), prefix="", digest=None)

    known = config_snapshot.load_snapshot().keys.values()

    assert key.pk not in {caller.key_id for caller in known}
    assert not revoked_file.exists()


def test_list_of_an_earlier_version_does_not_override_the_file(revoked_file):
    """The earlier format does not distinguish keys removed from the file from keys revoked by hand."""
    key, _ = factories.key("mallory")
    managed, _ = factories.key("ci", managed=True)
    revoked_file.write_text("".join(f"{bytes(one.digest).hex()}\n" for one in (key, managed)))

    assert (valid(key), valid(managed)) == (False, True)


def test_key_declared_again_in_the_file_is_valid(revoked_file):
    key, _ = factories.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now(), dropped=True)
    config_snapshot.load_snapshot()

    ApiKey.objects.filter(pk=key.pk).update(revoked=None, managed=True)

    assert valid(key)


def test_unusable_revocation_list_does_not_stop_the_gateway(revoked_file):
    key, _ = factories.key("mallory")
    ApiKey.objects.filter(pk=key.pk).update(revoked=now())
    revoked_file.mkdir()

    assert not valid(key)
