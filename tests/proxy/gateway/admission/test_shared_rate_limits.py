"""Several processes share rate limits: together they admit no more than one process would."""

import asyncio
import dataclasses
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from proxy.counters.failover import PAUSE_S, FailoverStore
from proxy.counters.redis_store import RedisStore
from proxy.counters.sqlite_store import SqliteStore
from proxy.counters.store import EXPIRE_S, LEASE_S, Kind, Standing, StoreUnavailable
from proxy.gateway.admission import rate_limits
from proxy.gateway.admission.rate_limits import (
    ConcurrencySlot,
    Limiter,
    SharedLimiter,
    admit,
    limits_of,
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


@pytest.fixture(params=["sqlite", "redis", "redis with failover"])
def processes(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Iterator[list[SharedLimiter]]:
    """Two processes as seen by the store: each has its own connection and name."""
    stores: list[Any] = []
    for _ in range(2):
        # A slow disk must not count as an outage.
        file = SqliteStore(tmp_path / "counters.sqlite3", clock, busy_s=REDIS_TIMEOUT_S)
        if request.param == "sqlite":
            stores.append(file)
            continue
        url = request.getfixturevalue("redis_server").url
        redis = RedisStore(url, REDIS_TIMEOUT_S, clock=clock)
        stores.append(FailoverStore(redis, file) if "failover" in request.param else redis)
    yield [SharedLimiter(each, f"process-{n}") for n, each in enumerate(stores)]
    wait_for_pool()
    for each in stores:
        each.close()


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
    rate_limits.thread.submit(int).result()


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

    slot.settle(20)
    slot.release()
    wait_for_pool()

    assert is_admitted(other, sender, 900)


def used(process: SharedLimiter, sender: Caller) -> list[float]:
    checks = limits_of(sender, 0, "")
    standings = process.peek(checks)
    return [round(each.used(one), 3) for each, one in zip(checks, standings, strict=True)]


def test_a_slot_is_settled_once_and_released_separately(processes: list[SharedLimiter]):
    one, other = processes
    sender = caller(Limits(tpm=1_000, rpm=600), Limits(concurrency=2))
    slot, unlimited = one.acquire(sender, 900), one.acquire(caller(), 5)
    assert dict(slot.headers)[b"anthropic-ratelimit-requests-limit"] == b"600"

    for each in (slot, unlimited):
        for tokens in (None, 500, 100):
            each.settle(tokens)
    wait_for_pool()

    assert used(other, sender) == [1, 500, 1]
    assert (slot.settled, unlimited.settled) == (True, True)

    slot.release()
    unlimited.release()
    wait_for_pool()
    assert used(other, sender) == [1, 500, 0]


def test_a_lease_ends_at_exactly_its_time(processes: list[SharedLimiter], clock: Clock):
    one, other = processes
    sender = caller(Limits(concurrency=9))

    def slots_at(unix_s: float) -> float:
        clock.at = unix_s
        return used(other, sender)[0]

    slot, _ = one.acquire(sender, 0), one.acquire(sender, 0)
    end = 1_000.0 + LEASE_S
    assert [slots_at(at) for at in (1_000, end - 1, end)] == [2, 2, 0]

    clock.at = 1_010.0
    one.renew()  # extends the lease by 20 s
    assert [slots_at(at) for at in (end + 1, end + 9, end + 10)] == [2, 2, 0]
    clock.at = 1_020.0
    slot.release()  # a release extends it too
    wait_for_pool()
    assert [slots_at(at) for at in (end + 19, end + 20)] == [1, 0]


def test_a_renewal_corrects_a_store_that_missed_a_change(processes: list[SharedLimiter]):
    one, other = processes
    sender = caller(Limits(concurrency=9))
    for _ in range(3):
        one.acquire(sender, 0)
    (counter,) = one.held
    one.held[counter] = 1  # as if the store had missed two releases

    one.renew()

    assert used(other, sender) == [1]


def test_a_renewal_lets_requests_of_others_run_between_its_calls(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(rate_limits, "RENEWED", 2)
    calls: list[str] = []

    class Calls(SqliteStore):
        def renew(self, holder: str, held: Mapping[str, int | None]) -> None:
            super().renew(holder, held)
            if not calls:  # a request that arrives during the first call
                rate_limits.thread.submit(calls.append, "request")
            calls.extend(held)

    process = SharedLimiter(Calls(tmp_path / "counters.sqlite3"), "me")
    senders = [
        dataclasses.replace(caller(Limits(concurrency=1)), meter_id=number) for number in range(5)
    ]
    slots = [process.acquire(sender, 0) for sender in senders]

    process.renew()

    counters = [counter for slot in slots for counter in slot.counters]
    assert calls == [*counters[:2], "request", *counters[2:]]
    process.store.close()


@pytest.mark.parametrize("limit", [Limits(rpm=60), Limits(tpm=60), Limits(concurrency=60)])
def test_the_file_keeps_no_limits_of_keys_that_send_nothing(tmp_path: Path, clock: Clock, limit):
    path = tmp_path / "counters.sqlite3"
    process = SharedLimiter(SqliteStore(path, clock), "me")
    for number in range(5):
        clock.at += 2 * EXPIRE_S
        process.acquire(dataclasses.replace(caller(limit), meter_id=number), 1)

    with closing(sqlite3.connect(path)) as file:
        rows = [*file.execute("SELECT counter FROM leases UNION ALL SELECT counter FROM debts")]
    assert [counter.startswith("limit 0 key 4 ") for (counter,) in rows] == [True]
    process.store.close()


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

    def take(self, *_: object) -> None:
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
    states = SqliteStore(tmp_path / "counters.sqlite3")
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


def test_both_engines_compute_the_same_limits(tmp_path: Path, redis_server):
    """Random changes of limits; every result, refusal and value is equal."""
    rng, clock = random.Random(7), Clock(1_700_000_000.0)  # noqa: S311 - not for secrets
    redis = RedisStore(redis_server.url, REDIS_TIMEOUT_S, clock=clock)
    file = SqliteStore(tmp_path / "counters.sqlite3", clock)
    outcomes: Counter[str] = Counter()
    choices = (caller(Limits(rpm=9)), caller(Limits(tpm=500), Limits(rpm=90, concurrency=4)))
    for step in range(1_000):
        clock.at += rng.random()
        takes = [each.take for each in limits_of(choices[step // 100 % 2], rng.randrange(120), "")]
        holder = rng.choice(["process-1", "process-2"])
        kind = rng.choice(["take", "take", "add", "renew", "peek"])
        arguments: dict[str, tuple[Any, ...]] = {
            "take": ("", holder, takes),
            "add": (holder, [one._replace(amount=rng.randint(-9, 1)) for one in takes]),
            "renew": (
                holder,
                {one.counter: rng.randrange(3) for one in takes if one.kind is Kind.SLOTS},
            ),
            "peek": (takes,),
        }
        found = [getattr(store, kind)(*arguments[kind]) for store in (redis, file)]

        assert found[0] == found[1], (step, kind, arguments[kind])
        outcomes[f"{kind} {getattr(found[0], 'granted', '')}"] += 1
    assert min(outcomes[kind] for kind in ("take True", "take False", "add ", "renew ")) > 50
    redis.close()
    file.close()


def test_one_request_is_one_script(redis_server, tmp_path: Path):
    """Many processes that share a team do not retry each other's changes."""
    store = FailoverStore(
        RedisStore(redis_server.url, REDIS_TIMEOUT_S), SqliteStore(tmp_path / "counters.sqlite3")
    )
    process = SharedLimiter(store, "me")
    sender = caller(Limits(rpm=60), Limits(tpm=1_000, concurrency=3))
    process.acquire(sender, 1).release()
    wait_for_pool()
    redis_server.client.config_resetstat()

    process.acquire(sender, 1).release()
    wait_for_pool()

    calls = {name: each["calls"] for name, each in redis_server.client.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] == 2
    assert calls.keys() <= {
        "cmdstat_evalsha", "cmdstat_time", "cmdstat_get", "cmdstat_set", "cmdstat_hgetall", "cmdstat_hget",
        "cmdstat_hset", "cmdstat_expire", "cmdstat_config|resetstat",
    }  # fmt: skip
    store.close()


@pytest.mark.parametrize("loses_data", [False, True])
def test_the_counts_of_an_outage_count_in_redis_after_it(
    tmp_path: Path, redis_server, clock: Clock, loses_data
):
    shared = RedisStore(redis_server.url, REDIS_TIMEOUT_S, clock=clock)
    file = SqliteStore(tmp_path / "counters.sqlite3", clock)
    store = FailoverStore(shared, file, clock)
    process, sender = SharedLimiter(store, "me"), caller(Limits(rpm=7), Limits(concurrency=6))
    redis_server.client.flushall()
    assert is_admitted(process, sender)
    redis_server.client.save()
    redis_server.kill()
    try:
        assert is_admitted(process, sender)
        assert store.degraded
        assert [is_admitted(process, sender) for _ in range(2)] == [True, True]
    finally:
        redis_server.start()
    if loses_data:
        redis_server.client.flushall()

    clock.at += PAUSE_S  # in which 7 requests a minute become free by a half
    assert used(process, sender) == [pytest.approx(4 - 7 * PAUSE_S / 60, abs=0.01), 4]
    assert [is_admitted(process, sender) for _ in range(4)] == [True, True, False, False]
    process.renew()
    assert shared.peek([limits_of(sender, 0, "")[1].take])[0] == Standing(reserved=6)
    store.close()
