"""Tokens that a program prints."""

import json
import sys

import pytest

from proxy.gateway.credentials.command import CommandToken, parse_output
from proxy.gateway.credentials.credential import CredentialError, bearer
from tests.for_each import for_each

PLAIN = {"token": "abc", "expirationTimestamp": "2026-11-24T12:00:00Z"}
KUBECTL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": PLAIN,
}


@for_each("printed", [PLAIN, KUBECTL], ids=["plain", "kubectl"])
def test_a_token_and_its_expiry_are_read(printed):
    assert parse_output(json.dumps(printed).encode(), "x") == ("abc", 1_795_521_600.0)


def test_without_a_timestamp_the_token_does_not_expire():
    assert parse_output(b'{"token": "abc"}', "x") == ("abc", None)


@for_each(
    "printed",
    [
        b"", b"abc", b"[]", b"{}", b'{"token": 1}', b'{"token": ""}', b'{"token": "a\\r\\nb: c"}',
        b'{"token": "\xc3\xa9"}', b'{"status": {"x": 1}}', b'{"token": "' + b"a" * 70_000 + b'"}',
        b'{"token": "abc", "expirationTimestamp": "soon"}',
        b'{"token": "abc", "expirationTimestamp": 12}',
        b'{"token": "abc", "expirationTimestamp": "2026-11-24T12:00:00"}',
        b"[" * 50_000,
    ],
)  # fmt: skip
def test_invalid_output_is_an_error_that_does_not_quote_it(printed):
    with pytest.raises(CredentialError) as error:
        parse_output(printed, "helper")

    assert "helper" in str(error.value)
    assert "abc" not in str(error.value)


def run(*command: str, timeout_s: float = 20):
    return CommandToken(command, timeout_s, bearer).fetch()


def test_the_program_runs_without_a_shell():
    script = "import json, sys; print(json.dumps({'token': sys.argv[1]}))"

    found = run(sys.executable, "-c", script, "$HOME;x")

    assert found.headers == {"authorization": "Bearer $HOME;x"}
    assert found.secret == b"$HOME;x"


@for_each(
    ("script", "timeout_s", "fault"),
    [
        ("import sys; print('s3cret', file=sys.stderr); sys.exit(3)", 20, "exit code 3"),
        ("import time; time.sleep(60)", 0.5, "did not end within 0.5 s"),
    ],
)
def test_a_program_that_fails_is_named_without_its_output(script, timeout_s, fault):
    with pytest.raises(CredentialError, match=fault) as error:
        run(sys.executable, "-c", script, timeout_s=timeout_s)

    assert "s3cret" not in str(error.value)


def test_a_missing_program_is_an_error():
    with pytest.raises(CredentialError, match="cannot run: No such file"):
        run("/nowhere/program")
