"""Where secrets come from: one root key, derived keys by purpose, gateway keys, references.

Nothing is signed with the root itself: each purpose gets its own key (HKDF, RFC 5869), so what one
purpose signed never verifies in another.
"""

import base64
import hashlib
import hmac
import logging
import os
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from translator.carrier import CarrierKeys

log = logging.getLogger(__name__)

KEY_MARK: Final = "sk-br-"
PREFIX_LENGTH: Final = len(KEY_MARK) + 8
BLOCK_BYTES: Final = 64  # of SHA-256
INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
MOST_SECRET_BYTES: Final = 64 * 1024  # of a file; a service account's JSON key is 2.4 KB
MOST_SECRET_FILES: Final = 1_000


class ConfigError(Exception):
    """The configuration is wrong; the message names what to mend, never a secret's value."""


class Secret(str):
    """A secret text. It can be sent, but a log line, a traceback or a dataclass shows ``***``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def has_root() -> bool:
    """Whether there is a secret key already; Django raises rather than hand out an empty one."""
    try:
        return bool(settings.SECRET_KEY)
    except ImproperlyConfigured:
        return False


def derive(purpose: str, root: str | None = None) -> bytes:
    """The 32-byte key of one purpose: HKDF-SHA256 over the secret key (or over ``root``)."""
    return _derived(purpose, settings.SECRET_KEY if root is None else root)


@lru_cache(maxsize=64)  # every request asks: 3 µs instead of 30
def _derived(purpose: str, secret: str) -> bytes:
    pseudorandom = hmac.digest(b"messages-bridge", secret.encode(), hashlib.sha256)
    return hmac.digest(pseudorandom, purpose.encode() + b"\x01", hashlib.sha256)


def new_secret() -> Secret:
    """A new gateway key: ``sk-br-`` and 256 random bits."""
    return Secret(KEY_MARK + secrets.token_urlsafe(32))


def digest_of(secret: str) -> bytes:
    """What is stored of a gateway key. The key is random, so a fast keyed hash is the right one."""
    return digest_of_bytes(secret.encode())


def digest_of_bytes(secret: bytes) -> bytes:
    inner, outer = _keyed(settings.SECRET_KEY)
    within, around = inner.copy(), outer.copy()
    within.update(secret)
    around.update(within.digest())
    return around.digest()


@lru_cache(maxsize=64)
def _keyed(root: str) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """HMAC-SHA256's two hashes, its key in them already (RFC 2104, part 4).

    Each request needs a digest. It takes 0.8 µs so, and 1.0 on a busy machine, where it took 1.4
    and 5.5 from a prepared ``hmac.HMAC``, and takes 2.1 and 6.7 by ``hmac.digest``.
    """
    key = derive("gateway key digest", root).ljust(BLOCK_BYTES, b"\0")
    return hashlib.sha256(key.translate(INNER)), hashlib.sha256(key.translate(OUTER))


def prefix_of(secret: str) -> str:
    """What may be shown of a gateway key: ``sk-br-AbCd1234``, or a few letters of a foreign one."""
    return secret[:PREFIX_LENGTH] if secret.startswith(KEY_MARK) else secret[: len(secret) // 8][:8]


def carrier_keys() -> CarrierKeys:
    """The ring that signs reasoning: the secret key signs, its predecessors still verify."""
    ring = {}
    for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        key = derive("reasoning carrier", root)
        ring[hashlib.sha256(key).hexdigest()[:8]] = key
    return CarrierKeys(current=next(iter(ring)), keys=ring)


def new_root() -> str:
    """A new secret key for an installation: 384 random bits as 64 characters."""
    return base64.urlsafe_b64encode(secrets.token_bytes(48)).decode()


def resolve(reference: Mapping[str, str]) -> Secret:
    """The secret behind ``{"env": NAME}`` or ``{"file": PATH}``; ``{}`` is "no secret": empty.

    Raises ConfigError naming the variable or the file, never what is in it.
    """
    if not reference:
        return Secret("")
    match dict(reference):
        case {"env": str(name)} if len(reference) == 1:
            return _checked(os.environ.get(name, ""), f"environment variable {name}")
        case {"file": str(path)} if len(reference) == 1:
            return SECRET_FILES.read(path)
        case _:
            raise ConfigError('a secret is { env = "NAME" } or { file = "/path" }')


def _checked(value: str, place: str) -> Secret:
    value = value.strip()
    if not value:
        raise ConfigError(f"{place} is missing or empty")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(f"{place} holds characters that no header can carry")
    return Secret(value)


Transition = Literal["changed", "failed", "recovered"]


class SecretFiles:
    """The last good secret of each file that was read.

    A file is read at each ``read``, so a replaced file, a rewritten one and a swapped symbolic
    link are all seen. A file that becomes unreadable or empty keeps its last good secret.
    """

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        """Why a file cannot be read now, by its path."""
        self._secrets: dict[str, Secret] = {}
        self._transitions: Counter[Transition] = Counter()
        self._lock = threading.Lock()

    def read(self, path: str) -> Secret:
        """Return the secret in the file, or the last good one. ConfigError: there is none."""
        try:
            found = _checked(_text_of(path), f"file {path}")
        except ConfigError as fault:
            return self._failed(path, fault)
        with self._lock:
            before = self._secrets.pop(path, found)
            if len(self._secrets) >= MOST_SECRET_FILES:
                del self._secrets[next(iter(self._secrets))]
            self._secrets[path] = found
            if self.faults.pop(path, ""):
                self._note(path, "recovered")
            if before != found:
                self._note(path, "changed")
        return found

    def look(self, paths: Iterable[str]) -> Counter[Transition]:
        """Read these files; return how often any file changed, failed and recovered so far."""
        for path in paths:
            try:
                self.read(path)
            except ConfigError:
                continue  # it is in ``faults``
        with self._lock:
            return self._transitions.copy()

    def _failed(self, path: str, fault: ConfigError) -> Secret:
        with self._lock:
            known = self._secrets.get(path)
            if path not in self.faults and len(self.faults) < MOST_SECRET_FILES:
                self.faults[path] = str(fault)
                if known is not None:
                    self._note(path, "failed")
        if known is None:
            raise fault
        return known

    def _note(self, path: str, transition: Transition) -> None:
        self._transitions[transition] += 1
        level, words = NOTES[transition]
        log.log(level, "secret file %s: %s", path, words)


NOTES: Final[Mapping[Transition, tuple[int, str]]] = {
    "changed": (logging.INFO, "it holds another secret, which is in use from now on"),
    "failed": (logging.WARNING, "it is unreadable or empty; its last good secret stays in use"),
    "recovered": (logging.INFO, "it can be read again"),
}
SECRET_FILES: Final = SecretFiles()
"""Of this process."""


def setting_now(name: str, at_start: str) -> str:
    """Return a secret setting as the file of ``<name>_FILE`` has it now, else as at the start."""
    path = os.environ.get(f"{name}_FILE")
    try:
        return SECRET_FILES.read(path) if path else at_start
    except ConfigError:
        return at_start


def _text_of(path: str) -> str:
    """The text of a regular file; nothing that could block or never end. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"file {path} cannot be read: not a regular file")
            raw = os.read(descriptor, MOST_SECRET_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(raw) > MOST_SECRET_BYTES:
            raise ConfigError(f"file {path} is larger than {MOST_SECRET_BYTES:,} bytes")
        return raw.decode()
    except (OSError, ValueError) as error:  # also a path with a NUL
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"file {path} cannot be read: {reason}") from None
