"""What authenticates the gateway to an upstream, refreshed ahead of its expiry.

A refresh runs in a thread of its own, so it never delays a request while the last credential is
valid, and there is one refresh at a time. If it fails, the last credential stays in use until it
expires, and the refresh is repeated.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from yarl import URL

from proxy.live.credential_states import STATES, CredentialState
from proxy.metrics.definitions import CREDENTIAL_EXPIRY, CREDENTIAL_REFRESHES, WORKER
from translator.capabilities import Profile

Signer = Callable[[URL, bytes], Mapping[str, str]]
STATIC: Final = "api_key"
"""The kind of a fixed key, of which no state is shown."""
WAIT_S: Final = 10.0
"""How long a request waits for a credential when there is no valid one."""
AHEAD_S: Final = 300.0
"""A credential is refreshed this long before it expires, but not before 3/4 of its lifetime."""
SHORTEST_DELAY_S: Final = 0.1
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays after the first, second ... failure in a row. The last one repeats."""
REPLACE_INTERVAL_S: Final = 30.0
"""If an upstream rejects a credential, it is replaced at most once in this time. Otherwise an
upstream that rejects every request would cause a refresh for each."""


class CredentialError(Exception):
    """No credential could be fetched. The message names what to correct, and no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A credential for one upstream, valid until ``expires_at``."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The request headers that carry the credential."""
    sign: Signer | None = field(default=None, repr=False)
    """Returns the headers for one request, if its URL and body are signed."""
    secret: bytes = field(default=b"", repr=False)
    """The bytes to redact in the upstream's responses. A signed request sends no secret."""
    expires_at: float | None = None
    """Seconds since 1970; None if it does not expire or the time is unknown."""
    origin: str = ""
    """Where it was found, for the operator, such as "the instance role"."""

    def headers_for(self, url: URL, body: bytes) -> Mapping[str, str]:
        """Return the headers that authenticate this request."""
        return self.headers if self.sign is None else self.sign(url, body)

    def is_valid(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


class CredentialSource(Protocol):
    """A place where credentials come from. Each kind of credentials has one."""

    def fetch(self) -> Credential:
        """Return a new credential; a cached one only if there is no newer one.

        Blocks for seconds, so it runs in a thread. Raises CredentialError.
        """
        ...


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def api_key_headers(dialect_name: str, profile: Profile, secret: str) -> dict[str, str]:
    """Return the header with an API key, as the upstream's API expects it."""
    if not secret:
        return {}
    if dialect_name == "anthropic" and not profile.bearer_auth:
        return {"x-api-key": secret}
    if profile.name == "azure":
        return {"api-key": secret}
    return bearer(secret)


NONE: Final = Credential()
"""For an upstream without authentication."""


log = logging.getLogger("proxy.gateway")


class LiveCredential:
    """The credential of one upstream. All methods may be called in any thread."""

    def __init__(
        self,
        upstream: str,
        kind: str,
        source: CredentialSource,
        *,
        first: Credential | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``first``: the credential if it is known already, such as a fixed API key."""
        self.upstream = upstream
        self.kind = kind
        self._source = source
        self._credential = first
        self._clock = clock
        self._lock = threading.Lock()
        self._refresh: Future[None] | None = None  # the running refresh
        self._timer: threading.Timer | None = None
        self._failures = 0  # in a row
        self._fault = ""
        self._retry_at = 0.0  # on the monotonic clock
        self._replaced_at = float("-inf")
        self._closed = False

    @property
    def current(self) -> Credential | None:
        """The credential, if it is valid now."""
        found = self._credential
        return found if found is not None and found.is_valid(self._clock()) else None

    def start(self) -> None:
        """Fetch the first credential in a thread, and refresh it from then on."""
        with self._lock:
            if self._refresh is None and self._timer is None and not self._closed:
                self._begin()

    def close(self) -> None:
        """Stop refreshing. Requests that hold the credential may still use it."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
        if STATES.pop(self.upstream, None) is not None:
            CREDENTIAL_EXPIRY.labels(self.upstream, WORKER).set(math.inf)

    async def get(self) -> Credential:
        """Return a valid credential; wait for the refresh if there is none yet.

        Raises CredentialError.
        """
        if (found := self.current) is not None:
            return found
        if self._refresh is None and self._failures == 1:
            # One failure may be an accident: wait for the second try instead of failing.
            await asyncio.sleep(max(0.0, self._retry_at - time.monotonic()))
        with self._lock:
            refresh = self._refresh
            if refresh is None and self.current is None and time.monotonic() >= self._retry_at:
                refresh = self._begin()
        await _wait(refresh)
        if (found := self.current) is not None:
            return found
        raise CredentialError(self._fault or "no credential was fetched in time")

    async def replace(self, rejected: Credential) -> Credential | None:
        """Return another credential after the upstream rejected this one; None if there is none."""
        found = self.current
        if found is None or found is rejected:
            with self._lock:
                refresh = self._refresh
                waited = time.monotonic() - self._replaced_at
                if refresh is None and waited >= REPLACE_INTERVAL_S:
                    self._replaced_at = time.monotonic()
                    refresh = self._begin()
            await _wait(refresh)
            found = self.current
        if found is None or found is rejected:
            return None
        is_same = found.sign is None and found.headers == rejected.headers
        return None if is_same else found

    def _begin(self) -> Future[None]:
        """Start a refresh in a thread. The caller holds the lock, and no refresh is running."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        refresh: Future[None] = Future()
        self._refresh = refresh
        threading.Thread(
            target=self._run, args=(refresh,), name=f"credential {self.upstream}", daemon=True
        ).start()
        return refresh

    def _begin_by_timer(self) -> None:
        with self._lock:
            self._timer = None
            if self._refresh is None and not self._closed:
                self._begin()

    def _run(self, refresh: "Future[None]") -> None:
        found: Credential | None = None
        try:
            found = self._source.fetch()
            fault = "" if found.is_valid(self._clock()) else "an expired credential was returned"
        except CredentialError as error:
            fault = str(error)
        except Exception as error:  # noqa: BLE001 -- a defect of a library must not end refreshing
            fault = f"{type(error).__name__} while fetching a credential"
        try:
            with self._lock:
                self._refresh = None
                self._record(found, fault)
        finally:
            refresh.set_result(None)

    def _record(self, found: Credential | None, fault: str) -> None:
        """Store the result of a refresh and schedule the next. The caller holds the lock."""
        delay: float | None = None
        if fault:
            delay = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
            self._failures += 1
            self._retry_at = time.monotonic() + delay
        elif found is not None:
            self._credential, self._failures, self._retry_at = found, 0, 0.0
            delay = refresh_delay(found.expires_at, self._clock())
        CREDENTIAL_REFRESHES.labels(self.upstream, "failed" if fault else "refreshed").inc()
        if fault and not self._fault:
            kept = "" if self.current is None else "; the last one stays in use until it expires"
            log.warning("credential of upstream %s: %s%s", self.upstream, fault, kept)
        elif self._fault and not fault:
            log.info("credential of upstream %s: fetched again", self.upstream)
        self._fault = fault
        # A fixed key is not fetched again on its own, only after an upstream has rejected it.
        if self._closed or self.kind == STATIC:
            return
        last = self._credential
        expires_at = last.expires_at if last else None
        if last is not None:
            CREDENTIAL_EXPIRY.labels(self.upstream, WORKER).set(
                math.inf if expires_at is None else expires_at
            )
        STATES[self.upstream] = CredentialState(
            kind=self.kind,
            origin=last.origin if last else "",
            expires_at=expires_at,
            fault=self._fault,
            usable=self.current is not None,
        )
        if delay is not None:
            self._timer = threading.Timer(delay, self._begin_by_timer)
            self._timer.daemon = True
            self._timer.start()


def refresh_delay(expires_at: float | None, now: float) -> float | None:
    """Return the seconds until the next refresh; None if the credential does not expire."""
    if expires_at is None:
        return None
    left = expires_at - now
    return max(SHORTEST_DELAY_S, left - min(AHEAD_S, left / 4))


async def _wait(refresh: "Future[None] | None") -> None:
    """Wait until the refresh has ended, at most WAIT_S. It goes on if the request is cancelled."""
    if refresh is not None:
        await asyncio.wait([asyncio.wrap_future(refresh)], timeout=WAIT_S)
