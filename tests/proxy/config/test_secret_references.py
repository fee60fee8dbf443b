"""Gateway keys, digests, derived keys and references to secrets (T06, T32, T33)."""

import hmac
import re

import pytest
from django.test import override_settings

from proxy.models import ApiKey, Team
from proxy.secrets import (
    MAX_SECRET_FILES,
    ConfigError,
    SecretFiles,
    derive,
    digest_of,
    new_root,
    new_secret,
    prefix_of,
    reasoning_signing_keys,
    resolve,
    setting_now,
)
from tests.for_each import for_each
from translator.stream.reasoning_signature import SignedReasoning, sign, verify


def test_a_new_key_has_256_random_bits():
    keys = {new_secret() for _ in range(200)}

    assert len(keys) == 200
    assert all(re.fullmatch(r"sk-br-[A-Za-z0-9_-]{43}", key) for key in keys)


def test_a_digest_depends_on_the_secret_key():
    with override_settings(SECRET_KEY="another" * 10):
        elsewhere = digest_of("sk-br-x")

    assert elsewhere != digest_of("sk-br-x")
    assert len(elsewhere) == 32


def test_a_digest_is_the_keyed_hash_of_the_standard():
    key = derive("gateway key digest")

    assert digest_of("sk-br-x") == hmac.digest(key, b"sk-br-x", "sha256")


def test_no_two_purposes_share_a_key():
    purposes = ["gateway key digest", "reasoning carrier", "session", "gateway key digest "]

    assert len({derive(purpose) for purpose in purposes}) == 4


@pytest.mark.django_db
def test_an_issued_key_is_stored_without_its_secret():
    key, secret = ApiKey.issue(Team.objects.create(name="ada"), "laptop")

    stored = ApiKey.objects.filter(pk=key.pk).values().get()
    assert secret not in str(stored)
    assert secret.startswith(stored["prefix"])
    assert len(stored["prefix"]) == 14
    assert key.scopes == ["messages"]


@for_each("secret", ["", "short", "x" * 32, "company-key-" + "y" * 40])
def test_the_prefix_of_a_foreign_secret_is_at_most_an_eighth(secret):
    assert len(prefix_of(secret)) <= len(secret) // 8


def test_a_repr_does_not_contain_the_secret():
    secret = new_secret()

    assert secret not in repr({"key": secret})
    assert f"Bearer {secret}".startswith("Bearer sk-br-")


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ({"env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
        ({"env": "BLANK"}, "BLANK"),
        ({"file": "/nowhere/key"}, "/nowhere/key"),
        ({"env": "SPLIT"}, "SPLIT"),
        ({"env": "A", "file": "/b"}, "env"),
        ({"vault": "x"}, "env"),
    ],
)
def test_an_unresolvable_reference_is_reported_without_a_value(reference, names, monkeypatch):
    monkeypatch.setenv("BLANK", "  ")
    monkeypatch.setenv("SPLIT", "sk-first\nsk-second")

    with pytest.raises(ConfigError) as caught:
        resolve(reference)

    assert names in str(caught.value)
    assert "sk-" not in str(caught.value)


def test_a_reference_reads_a_variable_or_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_KEY", " sk-1\n")
    (tmp_path / "key").write_text("sk-2\n", encoding="utf-8")

    assert resolve({"env": "SOME_KEY"}) == "sk-1"
    assert resolve({"file": str(tmp_path / "key")}) == "sk-2"
    assert resolve({}) == ""


def test_reasoning_signed_before_a_rotation_is_still_valid():
    old, new = new_root(), new_root()
    reasoning = SignedReasoning(upstream="openai", model="gpt-5.2", api="responses", item_id="rs_1")
    with override_settings(SECRET_KEY=old):
        signed = sign(reasoning, reasoning_signing_keys())

    with override_settings(SECRET_KEY=new, SECRET_KEY_FALLBACKS=[old]):
        assert verify(signed, reasoning_signing_keys()) == reasoning
    with override_settings(SECRET_KEY=new):
        assert verify(signed, reasoning_signing_keys()) is None


def test_a_secret_setting_is_read_from_its_file_again(tmp_path, monkeypatch):
    file = tmp_path / "password"
    monkeypatch.setenv("BRIDGE_SMTP_PASSWORD_FILE", str(file))
    assert setting_now("BRIDGE_SMTP_PASSWORD", "at the start") == "at the start"
    file.write_text("one\n")
    assert setting_now("BRIDGE_SMTP_PASSWORD", "at the start") == "one"
    file.write_text("two\n")
    assert setting_now("BRIDGE_SMTP_PASSWORD", "at the start") == "two"
    file.write_text("")
    assert setting_now("BRIDGE_SMTP_PASSWORD", "at the start") == "two"
    monkeypatch.delenv("BRIDGE_SMTP_PASSWORD_FILE")
    assert setting_now("BRIDGE_SMTP_PASSWORD", "at the start") == "at the start"


def test_the_cache_of_secret_files_is_bounded(tmp_path):
    names = [str(n) for n in range(MAX_SECRET_FILES + 2)]
    files = SecretFiles()
    for n in names:
        (tmp_path / n).write_text(f"secret-{n}")
        files.read(str(tmp_path / n))
    for n in names:
        (tmp_path / n).unlink()
    files.read_all(str(tmp_path / n) for n in names)

    assert len(files.faults) == MAX_SECRET_FILES
    with pytest.raises(ConfigError, match="cannot be read"):
        files.read(str(tmp_path / "1"))
    assert files.read(str(tmp_path / "2")) == "secret-2"
