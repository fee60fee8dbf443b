"""Secrets: the secret key, keys derived from it, gateway keys, and references to secrets.

Django's SECRET_KEY itself signs nothing. Each purpose has its own key derived from it (HKDF, RFC
5869), so a signature for one purpose is never valid for another.
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
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from proxy.file_modes import refuse_writable_by_all
from translator.stream.reasoning_signature import SigningKeys

log = logging.getLogger(__name__)

KEY_MARK: Final = "sk-br-"
PREFIX_LENGTH: Final = len(KEY_MARK) + 8
BLOCK_BYTES: Final = 64  # the block size of SHA-256
INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
MAX_SECRET_BYTES: Final = 64 * 1024  # the JSON key of a Google service account has 2.4 KB
MAX_SECRET_FILES: Final = 1_000


class ConfigError(Exception):
    """The configuration is wrong. The message names what to correct, never a secret's value."""


def mistakes_error(mistakes: Sequence[str]) -> ConfigError:
    """Return one error for all mistakes of a configuration, each on a line of its own."""
    if len(mistakes) == 1:
        return ConfigError(mistakes[0])
    return ConfigError("\n  ".join((f"{len(mistakes)} mistakes:", *mistakes)))


class Secret(str):
    """A secret string whose ``repr`` is ``'***'``, so that tracebacks do not show the secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def has_root() -> bool:
    """Return whether SECRET_KEY is set. Django raises an error when an empty one is read."""
    try:
        return bool(settings.SECRET_KEY)
    except ImproperlyConfigured:
        return False


def derive(purpose: str, root: str | None = None) -> bytes:
    """Return the 32-byte key for a purpose, derived by HKDF from ``root`` (default: SECRET_KEY)."""
    return _derive_cached(purpose, settings.SECRET_KEY if root is None else root)


# Each request needs a derived key: the cache takes 3 µs, the derivation 30 µs.
@lru_cache(maxsize=64)
def _derive_cached(purpose: str, secret: str) -> bytes:
    pseudorandom = hmac.digest(b"messages-bridge", secret.encode(), hashlib.sha256)
    return hmac.digest(pseudorandom, purpose.encode() + b"\x01", hashlib.sha256)


def new_secret() -> Secret:
    """Return a new gateway key: ``sk-br-`` and 256 random bits."""
    return Secret(KEY_MARK + secrets.token_urlsafe(32))


def digest_of(secret: str) -> bytes:
    """Return the digest that is stored for a gateway key.

    A fast keyed hash is enough, because keys are random.
    """
    return digest_of_bytes(secret.encode())


def digest_of_bytes(secret: bytes, root: str | None = None) -> bytes:
    """Return the digest under the SECRET_KEY ``root`` (default: the current one)."""
    inner, outer = _keyed_hashes(settings.SECRET_KEY if root is None else root)
    inner_hash, outer_hash = inner.copy(), outer.copy()
    inner_hash.update(secret)
    outer_hash.update(inner_hash.digest())
    return outer_hash.digest()


def old_digests_of(secret: bytes) -> list[bytes]:
    """Return the digests of a gateway key under SECRET_KEY_FALLBACKS."""
    return [digest_of_bytes(secret, root) for root in settings.SECRET_KEY_FALLBACKS]


@lru_cache(maxsize=64)
def _keyed_hashes(root: str) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """Return the two hashes of HMAC-SHA256 after both have processed the key (RFC 2104, part 4).

    Each request needs one digest. With these hashes it takes 0.8 µs (1.0 µs on a busy machine). A
    prepared ``hmac.HMAC`` takes 1.4 µs (5.5 µs), ``hmac.digest`` 2.1 µs (6.7 µs).
    """
    key = derive("gateway key digest", root).ljust(BLOCK_BYTES, b"\0")
    return hashlib.sha256(key.translate(INNER)), hashlib.sha256(key.translate(OUTER))


def prefix_of(secret: str) -> str:
    """Return the start of a gateway key to display, such as ``sk-br-AbCd1234``.

    Of a key in another format, return an eighth, at most 8 characters.
    """
    return secret[:PREFIX_LENGTH] if secret.startswith(KEY_MARK) else secret[: len(secret) // 8][:8]


def reasoning_signing_keys() -> SigningKeys:
    """Return the keys for reasoning signatures.

    The current SECRET_KEY signs; SECRET_KEY_FALLBACKS only verify.
    """
    ring = {}
    for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        key = derive("reasoning carrier", root)
        ring[hashlib.sha256(key).hexdigest()[:8]] = key
    return SigningKeys(current=next(iter(ring)), keys=ring)


def new_root() -> str:
    """Return a new SECRET_KEY for an installation: 384 random bits as 64 characters."""
    return base64.urlsafe_b64encode(secrets.token_bytes(48)).decode()


def resolve(reference: Mapping[str, str]) -> Secret:
    """Return the secret that ``{"env": NAME}`` or ``{"file": PATH}`` refers to; "" for ``{}``.

    Raises ConfigError, which names the variable or the file, but never its content.
    """
    if not reference:
        return Secret("")
    match dict(reference):
        case {"env": str(name)} if len(reference) == 1:
            return _checked_secret(os.environ.get(name, ""), f"environment variable {name}")
        case {"file": str(path)} if len(reference) == 1:
            return SECRET_FILES.read(path)
        case _:
            raise ConfigError('a secret is { env = "NAME" } or { file = "/path" }')


def _checked_secret(value: str, source: str) -> Secret:
    value = value.strip()
    if not value:
        raise ConfigError(f"{source} is missing or empty")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(f"{source} contains characters that are invalid in a header")
    return Secret(value)


Transition = Literal["changed", "failed", "recovered"]


class SecretFiles:
    """Cache the last valid secret of each secret file.

    Each call of ``read`` reads the file again, so it notices a replaced file, a rewritten file and
    a changed symbolic link. If a file becomes unreadable or empty, its last valid secret stays in
    use.
    """

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        """For each file that cannot be read now: its path and the reason."""
        self._secrets: dict[str, Secret] = {}
        self._transitions: Counter[Transition] = Counter()
        self._lock = threading.Lock()

    def read(self, path: str) -> Secret:
        """Return the secret in the file, or else its last valid secret.

        Raises ConfigError if there is none.
        """
        try:
            found = _checked_secret(_text_of(path), f"file {path}")
        except ConfigError as fault:
            return self._failed(path, fault)
        with self._lock:
            before = self._secrets.pop(path, found)
            if len(self._secrets) >= MAX_SECRET_FILES:
                del self._secrets[next(iter(self._secrets))]
            self._secrets[path] = found
            if self.faults.pop(path, ""):
                self._note(path, "recovered")
            if before != found:
                self._note(path, "changed")
        return found

    def read_all(self, paths: Iterable[str]) -> Counter[Transition]:
        """Read these files.

        Return how often any secret file has changed, failed or recovered so far.
        """
        for path in paths:
            try:
                self.read(path)
            except ConfigError:
                continue  # ``read`` has stored the error in ``faults``
        with self._lock:
            return self._transitions.copy()

    def _failed(self, path: str, fault: ConfigError) -> Secret:
        with self._lock:
            known = self._secrets.get(path)
            if path not in self.faults and len(self.faults) < MAX_SECRET_FILES:
                self.faults[path] = str(fault)
                if known is not None:
                    self._note(path, "failed")
        if known is None:
            raise fault
        return known

    def _note(self, path: str, transition: Transition) -> None:
        self._transitions[transition] += 1
        level, message = NOTES[transition]
        log.log(level, "secret file %s: %s", path, message)


NOTES: Final[Mapping[Transition, tuple[int, str]]] = {
    "changed": (logging.INFO, "it contains a new secret, which is now in use"),
    "failed": (logging.WARNING, "it is unreadable or empty; its last good secret stays in use"),
    "recovered": (logging.INFO, "it can be read again"),
}
SECRET_FILES: Final = SecretFiles()
"""The cache of secret files of this process."""


def setting_now(name: str, at_start: str) -> str:
    """Return the current value of a secret setting.

    If the environment variable ``<name>_FILE`` is set, read the file that it names; else return
    ``at_start``.
    """
    path = os.environ.get(f"{name}_FILE")
    try:
        return SECRET_FILES.read(path) if path else at_start
    except ConfigError:
        return at_start


def _text_of(path: str) -> str:
    """Return the text of a regular file.

    Raises ConfigError if it is unreadable, too large or not regular. Pipes and devices are
    rejected, because reading them could block or never end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"file {path} cannot be read: not a regular file")
            refuse_writable_by_all(path, mode)
            raw = os.read(descriptor, MAX_SECRET_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(raw) > MAX_SECRET_BYTES:
            raise ConfigError(f"file {path} is larger than {MAX_SECRET_BYTES:,} bytes")
        return raw.decode()
    except (OSError, ValueError) as error:
        # A ValueError means that the content is not UTF-8, or that the path contains a NUL.
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"file {path} cannot be read: {reason}") from None
