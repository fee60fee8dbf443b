"""A credential is refreshed ahead of its expiry, once at a time, and survives failures."""

import asyncio
import math
import threading

import pytest

from proxy.gateway.credentials.credential import (
    Credential,
    CredentialError,
    LiveCredential,
    bearer,
    refresh_delay,
)
from proxy.live.credential_states import STATES
from proxy.metrics.definitions import CREDENTIAL_EXPIRY
from tests.for_each import for_each

NOW = 1_000.0


class Source:
    """A source that returns the next of these results; each waits until ``gate`` is set."""

    def __init__(self, *results) -> None:
        self.results = list(results)
        self.fetches = 0
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self) -> Credential:
        self.fetches += 1
        assert self.gate.wait(10)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


class Clock:
    at = NOW

    def __call__(self) -> float:
        return self.at


def token(text: str, expires_at: float | None = NOW + 3_600) -> Credential:
    return Credential(
        headers=bearer(text), secret=text.encode(), expires_at=expires_at, origin="a test"
    )


@pytest.fixture
def live():
    """Return a function that creates a live credential with its clock, and closes it later."""
    made: list[LiveCredential] = []

    def create(*results, upstream="cloud"):
        source, clock = Source(*results), Clock()
        made.append(LiveCredential(upstream, "command", source, clock=clock))
        return made[-1], source, clock

    yield create
    for each in made:
        each.close()


async def test_many_requests_wait_for_one_refresh(live):
    credential, source, _ = live(token("first"))
    source.gate.clear()
    waiting = [asyncio.create_task(credential.get()) for _ in range(50)]
    await asyncio.sleep(0)
    source.gate.set()

    found = await asyncio.gather(*waiting)

    assert source.fetches == 1
    assert {each.headers["authorization"] for each in found} == {"Bearer first"}


async def test_the_last_credential_is_used_until_it_expires_if_a_refresh_fails(live):
    credential, source, clock = live(token("first"), CredentialError("no"), CredentialError("no"))
    first = await credential.get()

    assert await credential.replace(first) is None

    assert source.fetches == 2
    assert credential.current is first
    state = STATES["cloud"]
    assert (state.fault, state.usable, state.origin) == ("no", True, "a test")
    clock.at = first.expires_at
    assert credential.current is None
    with pytest.raises(CredentialError, match="no"):
        await credential.get()
    assert source.fetches == 3, "the request waited for the second try"
    with pytest.raises(CredentialError, match="no"):
        await credential.get()
    assert source.fetches == 3, "the delay after the second failure has not passed"


async def test_a_rejected_credential_is_replaced_once_for_all_requests(live):
    credential, source, _ = live(token("first"), token("second"), token("third"))
    first = await credential.get()

    found = await asyncio.gather(*(credential.replace(first) for _ in range(20)))

    assert {each.headers["authorization"] for each in found} == {"Bearer second"}
    assert source.fetches == 2
    assert await credential.replace(found[0]) is None, "an upstream that rejects every token"
    assert source.fetches == 2


async def test_the_same_token_again_is_no_reason_to_send_the_request_again(live):
    credential, source, _ = live(token("first"), token("first"))

    assert await credential.replace(await credential.get()) is None
    assert source.fetches == 2


async def test_an_expired_credential_from_the_source_is_a_failure(live):
    credential, _, _ = live(token("old", expires_at=NOW - 1))

    with pytest.raises(CredentialError, match="an expired credential was returned"):
        await credential.get()


async def test_a_defect_of_a_library_is_a_failure_without_its_text(live):
    credential, _, _ = live(RuntimeError("the secret abc"))

    with pytest.raises(CredentialError, match=r"^RuntimeError while fetching a credential$"):
        await credential.get()


def expiry_metric(upstream: str) -> float:
    found = {
        sample.value
        for family in CREDENTIAL_EXPIRY.collect()
        for sample in family.samples
        if sample.labels["upstream"] == upstream
    }
    [value] = found
    return value


async def test_the_metric_has_the_time_at_which_the_credential_expires(live):
    credential, _, clock = live(
        token("first"), CredentialError("down"), token("endless", None), upstream="metric"
    )

    await credential.get()
    assert expiry_metric("metric") == NOW + 3_600
    clock.at = NOW + 3_601
    with pytest.raises(CredentialError):
        await credential.get()
    assert expiry_metric("metric") == NOW + 3_600, "a failure must not hide that it expired"
    await credential.get()
    assert expiry_metric("metric") == math.inf


async def test_a_closed_credential_raises_no_alert(live):
    credential, _, _ = live(token("first"), upstream="closed metric")
    await credential.get()

    credential.close()

    assert expiry_metric("closed metric") == math.inf


def test_a_closed_credential_has_no_state(live):
    credential, _, _ = live(token("first"))
    asyncio.run(credential.get())
    assert STATES["cloud"].usable

    credential.close()

    assert "cloud" not in STATES


@for_each(
    ("left", "delay"),
    [(3_600, 3_300), (600, 450), (40, 30), (0.05, 0.1), (None, None)],
)
def test_a_refresh_precedes_the_expiry(left, delay):
    expires_at = None if left is None else NOW + left

    found = refresh_delay(expires_at, NOW)

    assert found == (None if delay is None else pytest.approx(delay))
