"""A token that a program prints, like the credential plugins of kubectl.

The program prints one JSON object, ``{"token": "...", "expirationTimestamp":
"2026-01-01T00:00:00Z"}``, or the same two fields inside ``status``. Without a timestamp the token
does not expire. Source: Kubernetes, "Authenticating", client-go credential plugins.
"""

import datetime as dt
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .credential import Credential, CredentialError

MAX_OUTPUT_BYTES: Final = 64 * 1024


class CommandToken:
    """Runs a program without a shell, and without input."""

    def __init__(
        self,
        command: Sequence[str],
        timeout_s: float,
        as_headers: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._command = list(command)
        self._timeout_s = timeout_s
        self._as_headers = as_headers

    def fetch(self) -> Credential:
        program = self._command[0]
        try:
            # The command is from bridge.toml, which the gateway's own administrator writes.
            done = subprocess.run(  # noqa: S603
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CredentialError(
                f"command {program!r} did not end within {self._timeout_s:g} s"
            ) from None
        except OSError as error:
            raise CredentialError(f"command {program!r} cannot run: {error.strerror}") from None
        if done.returncode != 0:
            # Its error output is not quoted, because it may contain a secret.
            raise CredentialError(f"command {program!r} ended with exit code {done.returncode}")
        token, expires_at = parse_output(done.stdout, program)
        return Credential(
            headers=self._as_headers(token),
            secret=token.encode(),
            expires_at=expires_at,
            origin=f"command {program}",
        )


def parse_output(output: bytes, program: str) -> tuple[str, float | None]:
    """Return the token and its expiry in seconds since 1970. Raises CredentialError."""
    try:
        value: Any = json.loads(output) if len(output) <= MAX_OUTPUT_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and isinstance(value.get("status"), dict):
        value = value["status"]
    token = value.get("token") if isinstance(value, dict) else None
    if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
        raise CredentialError(f'command {program!r} did not print JSON with a field "token"')
    stamp = value.get("expirationTimestamp")
    if stamp is None:
        return token, None
    try:
        expires = dt.datetime.fromisoformat(stamp)
    except (TypeError, ValueError):
        expires = None
    if expires is None or expires.tzinfo is None:
        raise CredentialError(f'command {program!r} printed an invalid "expirationTimestamp"')
    return token, expires.timestamp()
