"""Several processes share rate limits: together they admit no more than one process would."""

import asyncio
import dataclasses
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from proxy.counters.budget_store import LEASE_S, StoreUnavailable
from proxy.counters.redis_client import client_of
from proxy.counters.redis_limits import RedisLimits
from proxy.counters.shared_state import SqliteStates
from proxy.counters.shared_state_failover import FailoverStates, MemoryStates
from proxy.gateway.admission import shared_rate_limits
from proxy.gateway.admission.rate_limits import ConcurrencySlot, Limiter
from proxy.gateway.admission.shared_rate_limits import (
    LimitChange,
    SharedConcurrencySlot,
    SharedLimiter,
    admit,
)
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import (
    NO_LIMITS,
    Caller,
    Limits,
    ModelAllowList,
    ModelLimits,
    TeamEntry,
)
from tests.fakes.clock import Clock
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture(params=["sqlite", "redis"])
def processes(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Iterator[list[SharedLimiter]]:
    """Two processes as seen by the store: each has its own connection and name."""
    states: list[SqliteStates | FailoverStates] = []
    for _ in range(2):
        if request.param == "sqlite":
            # A slow disk must not count as an outage.
            states.append(SqliteStates(tmp_path / "limits.sqlite3", REDIS_TIMEOUT_S))
        else:
            server = request.getfixturevalue("redis_server")
            redis = RedisLimits(client_of(server.url, REDIS_TIMEOUT_S))
            states.append(FailoverStates(redis, MemoryStates()))
    yield [SharedLimiter(each, f"process-{n}", clock) for n, each in enumerate(states)]
    for each in states:
        close = each.close if isinstance(each, SqliteStates) else each.shared.client.close
        close()


def caller(key: Limits | None = None, team: Limits | None = None) -> Caller:
    return Caller(
        key_id=1, key_name="ada", meter="platform/ada", user="", scopes=frozenset(), models=ModelAllowList(),
        team=TeamEntry(name="platform", store_full=True, models=ModelAllowList(), limits=team or NO_LIMITS),
        limits=key or NO_LIMITS, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


def is_admitted(process: SharedLimiter, sender: Caller, estimate: int = 0, model: str = "") -> bool:
    try:
        process.acquire(sender, estimate, model)
    except HttpError:
        return False
    return True


def wait_for_pool() -> None:
    """Wait until the pool has run all earlier tasks."""
    shared_rate_limits.thread.submit(int).result()


@pytest.mark.parametrize("limit", [Limits(rpm=6), Limits(tpm=60), Limits(concurrency=6)])
@pytest.mark.parametrize("place", ["key", "team"])
def test_each_limit_applies_at_exactly_its_value(processes: list[SharedLimiter], limit, place):
    sender = caller(**{place: limit})
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda n: is_admitted(processes[n % 2], sender, 10), range(20)))

    assert seen.count(True) == 6


@pytest.mark.parametrize("sizes", [Limits(rpm=6), Limits(tpm=60), Limits(concurrency=6)])
def test_limits_by_model_are_shared_and_apply_at_exactly_their_value(
    processes: list[SharedLimiter], sizes
):
    own = (ModelLimits("claude-opus-*", sizes),)
    sender = dataclasses.replace(caller(), model_limits=own)
    with ThreadPoolExecutor(4) as pool:
        seen = list(
            pool.map(
                lambda n: is_admitted(processes[n % 2], sender, 10, "claude-opus-5"), range(20)
            )
        )

    assert seen.count(True) == 6
    assert all(is_admitted(process, sender, 10, "claude-haiku-5") for process in processes)
    with pytest.raises(HttpError, match=r"key platform/ada for claude-opus-\*"):
        processes[0].acquire(sender, 10, "claude-opus-4")


def test_the_refusal_names_the_limit_the_owner_the_count_and_the_time(
    processes: list[SharedLimiter],
):
    sender = caller(team=Limits(rpm=2))
    for process in processes:
        process.acquire(sender, 0)

    with pytest.raises(HttpError) as caught:
        processes[0].acquire(sender, 0)

    refusal = caught.value
    assert refusal.status == 429
    match = re.match(
        r"team platform is at its limit: rpm 2, used 2; try again in (\d+) s, at ", refusal.message
    )
    assert match
    assert 1 <= int(match[1]) <= 30  # less if the test is slow
    assert refusal.headers["anthropic-ratelimit-requests-remaining"] == "0"


def test_a_release_corrects_the_tokens_and_frees_the_slot(processes: list[SharedLimiter]):
    one, other = processes
    sender = caller(Limits(tpm=1_000, concurrency=1))
    slot = one.acquire(sender, 900)
    assert not is_admitted(other, sender, 10)

    one.release(slot, 880, 1)

    assert is_admitted(other, sender, 900)


def test_a_slot_is_settled_once_and_released_separately(
    processes: list[SharedLimiter], clock: Clock
):
    one, other = processes
    sender = caller(Limits(tpm=1_000, rpm=600), Limits(concurrency=2))
    names = ["key platform/ada", "team platform"]
    slot, unshared = one.acquire(sender, 900), SharedConcurrencySlot((), 5)
    assert dict(slot.headers)[b"anthropic-ratelimit-requests-limit"] == b"600"

    for each in (slot, unshared):
        for used in (None, 500, 100):
            each.settle(used)
    wait_for_pool()

    key, team = other.read_states(names)
    assert [state.name for state in (key, team)] == names
    assert key.tokens.left == 500
    assert (key.elsewhere, team.elsewhere, team.tokens, team.requests) == (1, 1, None, None)
    assert (slot.settled, unshared.settled) == (True, False)
    assert (key.tokens.size, key.requests.size) == (1_000, 600)
    assert key.tokens.at == clock.at

    slot.release()
    unshared.release()
    wait_for_pool()
    assert [state.elsewhere for state in other.read_states(names)] == [0, 0]


def test_a_lease_ends_at_exactly_its_time(processes: list[SharedLimiter], clock: Clock):
    one, other = processes
    sender, name = caller(Limits(concurrency=9)), ["key platform/ada"]

    def slots_at(unix_s: float) -> int:
        clock.at = unix_s
        return other.read_states(name)[0].elsewhere

    slot, _ = one.acquire(sender, 0), one.acquire(sender, 0)
    end = 1_000.0 + LEASE_S
    assert [slots_at(at) for at in (1_000, end - 1, end)] == [2, 2, 0]

    clock.at = 1_010.0
    one.renew()  # extends the lease by 20 s
    assert [slots_at(at) for at in (end + 1, end + 9, end + 10)] == [2, 2, 0]
    clock.at = 1_020.0
    one.release(slot, 0, 1)  # a release extends it too
    assert [slots_at(at) for at in (end + 19, end + 20)] == [1, 0]


def test_a_malformed_state_counts_as_empty():
    for text in (None, "", "{", '{"running": 3}', "[]"):
        stored = shared_rate_limits.read_state(text, 0.0)

        assert (stored.requests, stored.tokens, stored.running) == (None, None, {})


def test_the_slots_of_a_dead_process_become_free_and_those_of_a_live_one_stay(
    processes: list[SharedLimiter], clock: Clock
):
    dead, living = processes
    sender = caller(Limits(concurrency=2))
    dead.acquire(sender, 0)
    living.acquire(sender, 0)
    clock.at += LEASE_S / 2
    living.renew()
    clock.at += LEASE_S / 2

    assert is_admitted(living, sender)
    assert not is_admitted(living, sender)


class Unavailable:
    """A store that cannot be reached."""

    calls = 0

    def update(self, *_: object) -> None:
        self.calls += 1
        raise StoreUnavailable("gone")


async def test_while_the_store_is_unavailable_each_process_counts_by_itself():
    states = Unavailable()
    process = SharedLimiter(states, "me")
    sender, limiter = caller(Limits(concurrency=1)), Limiter()

    def admitted() -> AbstractAsyncContextManager[ConcurrencySlot]:
        return admit(sender, 0, limiter, lambda: process, model="m")

    async with admitted():
        with pytest.raises(HttpError):
            async with admitted():
                pass
    assert states.calls == 1
    async with admitted():
        pass


async def test_a_client_disconnect_while_waiting_takes_no_slot(tmp_path: Path):
    states = SqliteStates(tmp_path / "limits.sqlite3")
    process = SharedLimiter(states, "me")
    sender = caller(Limits(concurrency=1))

    async def send() -> None:
        async with admit(sender, 0, find_shared=lambda: process, model="m"):
            await asyncio.sleep(30)

    for _ in range(20):
        task = asyncio.create_task(send())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    deadline = time.monotonic() + 60
    while not is_admitted(process, sender):
        assert time.monotonic() < deadline, "a slot was not released"
        await asyncio.sleep(0.01)
    states.close()


async def test_a_running_request_has_taken_its_estimated_tokens_of_its_model(
    processes: list[SharedLimiter],
):
    by_model = ModelLimits("gpt-*", Limits(tpm=60))
    sender = dataclasses.replace(caller(), model_limits=(by_model,))

    async with admit(sender, 50, find_shared=lambda: processes[0], model="gpt-5.2"):
        assert not is_admitted(processes[1], sender, 11, "gpt-5.2")
        assert is_admitted(processes[1], sender, 10, "gpt-5.2")
    wait_for_pool()  # until the slot is free: the next test uses the same Redis


async def test_a_caller_without_limits_uses_no_store():
    def find_shared() -> None:
        pytest.fail("the store is not needed")

    async with admit(caller(), 10, Limiter(), find_shared, model="m") as slot:
        assert slot.headers == ()


def test_the_script_computes_what_the_gateway_computes(redis_server):
    """Random changes of two states; every text and every refusal is equal."""
    redis, rng = RedisLimits(client_of(redis_server.url, REDIS_TIMEOUT_S)), random.Random(7)  # noqa: S311 - not for secrets
    names, now = ["key platform/ada", "team platform"], 1_700_000_000.0
    expected: list[str | None] = [None, None]
    outcomes: Counter[str] = Counter()
    choices = [(Limits(rpm=9), NO_LIMITS), (Limits(tpm=500), Limits(rpm=90, concurrency=4))]
    for step in range(1_000):
        now += rng.random()
        kind = rng.choice(["take", "take", "release", "renew"])
        fields = {
            "take": {"take": choices[step // 100 % 2], "estimate": rng.randrange(120), "slots": 1},
            "release": {"tokens": rng.uniform(-50, 50), "slots": -1},
            "renew": {"held": rng.randrange(3)},
        }[kind]
        holder = rng.choice(["process-1", "process-2"])
        change = LimitChange(names=names, holder=holder, now=now, **fields)
        try:
            new = [
                f"{int((old or '0:').partition(':')[0]) + 1}:{text}"
                for old, text in zip(
                    expected,
                    change([(old or ":").partition(":")[2] or None for old in expected]),
                    strict=True,
                )
            ]
        except HttpError as refusal:
            outcomes[f"refused by {refusal.detail}"] += 1
            new = None

        is_changed, texts = redis.change(names, change, [None, None])

        assert is_changed is (new is not None)
        expected = new or expected
        outcomes[kind] += is_changed
        for one, other in zip(expected, texts, strict=True):
            assert parsed(one) == parsed(other)
    assert outcomes.keys() == {
        "take", "release", "renew", "refused by rpm", "refused by tpm", "refused by concurrency"
    }  # fmt: skip
    redis.client.close()


def parsed(text: str | None) -> tuple[str, shared_rate_limits.StoredLimitState]:
    version, _, state = (text or ":").partition(":")
    return version, shared_rate_limits.read_state(state, 0.0)


def test_one_request_is_one_script(redis_server):
    """Many processes that share a team do not retry each other's changes."""
    redis = RedisLimits(client_of(redis_server.url, REDIS_TIMEOUT_S))
    process = SharedLimiter(FailoverStates(redis, MemoryStates()), "me")
    sender = caller(Limits(rpm=60), Limits(tpm=1_000))
    process.acquire(sender, 1)
    redis_server.client.config_resetstat()

    slot = process.acquire(sender, 1)
    process.release(slot, 0, 1)

    calls = {name: each["calls"] for name, each in redis_server.client.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] == 2
    assert calls.keys() <= {
        "cmdstat_evalsha", "cmdstat_type", "cmdstat_get", "cmdstat_set", "cmdstat_config|resetstat"
    }  # fmt: skip
    redis.client.close()
