"""The encryption of texts: keys, addresses, missing keys, and what remains possible without a key."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from bridge_project.env import env_keys
from proxy.bootstrap.doctor import _check_body_keys
from proxy.counters.session_calls import EncryptedCalls, SqliteCalls
from proxy.encryption.bodies import (
    DamagedBody,
    MissingBodyKey,
    decrypt,
    encrypt,
    key_ids,
    keyed_digest,
    known_digests,
    seal,
    stored_text,
    unseal,
)
from proxy.ledger.archive import parquet
from proxy.ledger.maintenance import retention
from proxy.ledger.transcripts import storage
from proxy.models import BodyKeyUse, Exchange, Part, Transcript
from tests.proxy.admin import factories

ONE, TWO = "first-key-" * 5, "second-key-" * 5
DIGEST = bytes(range(32))


@pytest.fixture
def body_keys(settings):
    def set_keys(*keys: str) -> None:
        settings.BODY_KEYS = list(keys)

    set_keys(ONE)
    return set_keys


@given(data=st.binary(), address=st.binary(max_size=40))
def test_data_is_readable_at_its_address_only(data, address):
    # Hypothesis calls the test many times with one value of a fixture.
    with override_settings(BODY_KEYS=[ONE]):
        stored = encrypt(data, address)

        assert decrypt(stored, address) == data
        assert stored != encrypt(data, address)
        with pytest.raises(DamagedBody):
            decrypt(stored, address + b"x")


def test_every_key_decrypts_and_the_first_encrypts(body_keys):
    old = encrypt(b"text", b"at")
    old_digest = keyed_digest(DIGEST)
    body_keys(TWO, ONE)

    assert decrypt(old, b"at") == b"text"
    assert encrypt(b"text", b"at")[4:8].hex() == key_ids()[0] != old[4:8].hex()
    assert old_digest in known_digests(DIGEST)
    assert DIGEST not in {old_digest, keyed_digest(DIGEST)}


def test_without_the_key_a_text_names_it_and_its_stored_form_stays(body_keys):
    sealed = seal("a secret prompt")
    [key] = key_ids()
    body_keys(TWO)

    read = unseal(stored_text(sealed))
    assert read == f"encrypted with key {key}, which this gateway does not have"
    assert stored_text(read) == stored_text(sealed)
    with pytest.raises(MissingBodyKey, match=key):
        decrypt(bytes.fromhex(f"{b'ENC1'.hex()}{key}") + bytes(28), b"")


@pytest.mark.parametrize("text", ["", "ENC1.", "ENC1.zz.", "ENC1.00000000.", "ENC1.0000.é", "enc1"])
def test_a_text_that_looks_encrypted_is_returned_unchanged(text, body_keys):
    assert unseal(text) == text


@pytest.mark.parametrize(
    ("value", "fault"), [("short", "key 1 has 5 characters"), (f"{ONE}\n{ONE}", "occurs twice")]
)
def test_an_unusable_key_prevents_the_start(value, fault, monkeypatch):
    monkeypatch.setenv("BRIDGE_BODY_KEYS", value)

    with pytest.raises(ImproperlyConfigured, match=fault) as error:
        env_keys("BRIDGE_BODY_KEYS", 43)
    assert value not in str(error.value)


def test_calls_without_their_key_count_as_gone(body_keys, tmp_path):
    calls = EncryptedCalls(SqliteCalls(tmp_path / "calls.sqlite3"))
    calls.save("origin", "session", {"call_1": '{"text": "an answer"}'})

    assert calls.load("origin", "session") == {"call_1": '{"text": "an answer"}'}
    for path in tmp_path.iterdir():
        assert b"an answer" not in path.read_bytes()
    body_keys(TWO, ONE)
    assert calls.load("origin", "session") == {"call_1": '{"text": "an answer"}'}
    body_keys(TWO)
    assert calls.load("origin", "session") == {"call_1": None}


@pytest.mark.django_db
def test_a_stored_request_is_read_with_its_key_and_names_the_missing_one(body_keys):
    row = factories.record(reads=((1.0, b"data: x\n\n"),))
    [key] = key_ids()

    assert storage.read(row.pk).request == factories.request_body()
    assert Exchange.objects.get(pk=row.pk).prompt == "Which files are here?"
    body_keys(TWO)
    with pytest.raises(storage.EncryptedTranscript, match=f"encrypted with key {key}"):
        storage.read(row.pk)
    assert key in Exchange.objects.get(pk=row.pk).prompt


@pytest.mark.django_db
def test_parts_of_an_unreadable_transcript_stay_until_it_is_pruned(body_keys):
    now = datetime.now(UTC)
    old = now - timedelta(days=9)
    row = Exchange.objects.create(id="req_1", created=old, state="open", team="a")
    Transcript.objects.create(
        exchange=row, created=old, prefix=bytes(16), manifest=encrypt(b"", b"manifest:req_1")
    )
    for number, days in enumerate((10, 9)):
        used = now - timedelta(days=days)
        Part.objects.create(digest=bytes([number]) * 32, size=0, data=b"", used=used)
    body_keys(TWO)

    assert sum(retention.prune_parts(now)) == 1  # the one that the transcript cannot use
    assert Part.objects.count() == 1
    Transcript.objects.all().delete()
    assert sum(retention.prune_parts(now)) == 1


@pytest.mark.django_db
def test_doctor_reports_a_missing_key_and_a_key_beside_its_data(body_keys, settings, monkeypatch):
    BodyKeyUse.note_current()
    [missing] = key_ids()
    body_keys(TWO)
    monkeypatch.setenv("BRIDGE_BODY_KEYS_FILE", str(settings.DATA_DIR / "keys"))

    found = list(_check_body_keys())

    assert [one.ok for one in found] == [False, False, None]
    assert missing in found[0].text
    assert "is in the data directory" in found[1].text
    assert key_ids()[0] in found[2].text


@pytest.mark.slow
def test_archived_rows_keep_their_texts_encrypted(body_keys, tmp_path):
    pytest.importorskip("pyarrow")
    now = datetime.now(UTC)
    row = Exchange(id="req_1", created=now, prompt=seal("a planted prompt"))
    path = tmp_path / "month.parquet"
    list(parquet.write([row], path))

    assert not [file for file in tmp_path.iterdir() if b"planted" in file.read_bytes()]
    assert [found.prompt for found in parquet.read(path)] == ["a planted prompt"]
