"""Several processes count together: no more get in than one process alone would let in."""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.counters import states as stored
from proxy.counters.states import RedisStates, SqliteStates, States
from proxy.counters.store import StoreAway
from proxy.gateway import shared_limits
from proxy.gateway.directory import NO_LIMITS, Caller, Globs, Limits, TeamEntry
from proxy.gateway.limits import Limiter
from proxy.gateway.refusals import Refusal
from proxy.gateway.shared_limits import Common, SharedSeat, admit
from tests.fakes.redis_server import PATIENT_S, redis_server, running_redis

__all__ = ["redis_server", "running_redis"]  # fixtures


@pytest.fixture(params=["sqlite", "redis"])
def processes(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Common]]:
    """Two processes as the store sees them: each with a connection and a name of its own."""
    monkeypatch.setattr(stored, "BUSY_S", PATIENT_S)  # a slow disk is no store that is away
    states: list[States] = []
    for _ in range(2):
        if request.param == "sqlite":
            states.append(SqliteStates(tmp_path / "limits.sqlite3"))
        else:
            from proxy.counters.redis_store import client_of

            server = request.getfixturevalue("redis_server")
            states.append(RedisStates(client_of(server.url, PATIENT_S)))
    yield [Common(each, f"process-{n}") for n, each in enumerate(states)]
    for each in states:
        close = each.close if isinstance(each, SqliteStates) else each._redis.close
        close()


def caller(key: Limits | None = None, team: Limits | None = None) -> Caller:
    return Caller(
        key_id=1, key_name="ada", meter="platform/ada", user="", scopes=frozenset(), models=Globs(),
        team=TeamEntry(name="platform", store_full=True, models=Globs(), limits=team or NO_LIMITS),
        limits=key or NO_LIMITS, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


def let_in(process: Common, who: Caller, estimate: int = 0) -> bool:
    try:
        process.take(who, estimate)
    except Refusal:
        return False
    return True


def written() -> None:
    """What was given to the pool before is done."""
    shared_limits._pool.submit(int).result()


@pytest.mark.parametrize("limit", [Limits(rpm=6), Limits(tpm=60), Limits(concurrency=6)])
@pytest.mark.parametrize("place", ["key", "team"])
def test_each_limit_hits_at_exactly_its_figure(processes: list[Common], limit, place):
    who = caller(**{place: limit})
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda n: let_in(processes[n % 2], who, 10), range(20)))

    assert seen.count(True) == 6


def test_the_refusal_says_which_limit_whose_its_value_the_count_and_when(
    processes: list[Common],
):
    who = caller(team=Limits(rpm=2))
    for process in processes:
        process.take(who, 0)

    with pytest.raises(Refusal) as caught:
        processes[0].take(who, 0)

    refusal = caught.value
    assert refusal.status == 429
    told = re.match(
        r"team platform is at its limit: rpm 2, used 2; try again in (\d+) s, at ", refusal.message
    )
    assert told
    assert 1 <= int(told[1]) <= 30  # less with each second that went by
    assert refusal.headers["anthropic-ratelimit-requests-remaining"] == "0"


def test_tokens_are_set_right_and_seats_given_back(processes: list[Common]):
    one, other = processes
    who = caller(Limits(tpm=1_000, concurrency=1))
    seat = one.take(who, 900)
    assert not let_in(other, who, 10)

    one.give(seat, 880, 1)

    assert let_in(other, who, 900)


def test_a_seat_is_settled_once_and_left_by_itself(
    processes: list[Common], monkeypatch: pytest.MonkeyPatch
):
    one, other = processes
    monkeypatch.setattr(shared_limits.time, "time", lambda: 1_000.0)  # nothing refills meanwhile
    who = caller(Limits(tpm=1_000, rpm=600), Limits(concurrency=2))
    names = ["key platform/ada", "team platform"]
    seat, alone = one.take(who, 900), SharedSeat((), 5)
    assert dict(seat.headers)[b"anthropic-ratelimit-requests-limit"] == b"600"

    for each in (seat, alone):
        for used in (None, 500, 100):
            each.settle(used)
    written()

    key, team = other.look(names)
    assert [meter.name for meter in (key, team)] == names
    assert key.tokens.left == 500
    assert (key.elsewhere, team.elsewhere, team.tokens, team.requests) == (1, 1, None, None)
    assert (seat.settled, alone.settled) == (True, False)
    assert (key.tokens.size, key.requests.size) == (1_000, 600)
    assert key.tokens.at == 1_000.0  # Unix seconds

    seat.leave()
    alone.leave()
    written()
    assert [meter.elsewhere for meter in other.look(names)] == [0, 0]


def test_a_lease_is_believed_as_long_as_it_says_and_no_longer(processes: list[Common], monkeypatch):
    one, other = processes
    clock = [1_000.0]
    monkeypatch.setattr(shared_limits.time, "time", lambda: clock[0])
    who, name = caller(Limits(concurrency=9)), ["key platform/ada"]

    def seats_at(unix_s: float) -> int:
        clock[0] = unix_s
        return other.look(name)[0].elsewhere

    seat, _ = one.take(who, 0), one.take(who, 0)
    end = 1_000.0 + shared_limits.LEASE_S
    assert [seats_at(at) for at in (1_000, end - 1, end)] == [2, 2, 0]

    clock[0] = 1_010.0
    one.renew()  # twenty seconds more from here
    assert [seats_at(at) for at in (end + 1, end + 9, end + 10)] == [2, 2, 0]
    clock[0] = 1_020.0
    one.give(seat, 0, 1)  # so does whoever gives one of several back
    assert [seats_at(at) for at in (end + 19, end + 20)] == [1, 0]


def test_what_nobody_of_us_has_written_is_nothing():
    for text in (None, "", "{", '{"running": 3}', "[]"):
        stored = shared_limits._read(text, 0.0)

        assert (stored.requests, stored.tokens, stored.running) == (None, None, {})


def test_the_seats_of_a_dead_process_become_free_and_those_of_a_living_one_stay(
    processes: list[Common], monkeypatch
):
    dead, living = processes
    who = caller(Limits(concurrency=2))
    monkeypatch.setattr(shared_limits, "LEASE_S", 0.0)
    dead.take(who, 0)
    living.take(who, 0)
    monkeypatch.setattr(shared_limits, "LEASE_S", 60.0)
    living.renew()

    assert let_in(living, who)
    assert not let_in(living, who)


class Away:
    """A store that cannot be reached."""

    asked = 0

    def update(self, *_: object) -> None:
        self.asked += 1
        raise StoreAway("gone")


async def test_while_the_store_is_away_each_process_counts_for_itself(monkeypatch):
    states = Away()
    process = Common(states, "me")
    monkeypatch.setattr(shared_limits, "common", lambda: process)
    who, limiter = caller(Limits(concurrency=1)), Limiter()

    async with admit(who, 0, limiter):
        with pytest.raises(Refusal):
            async with admit(who, 0, limiter):
                pass
    assert states.asked == 1
    async with admit(who, 0, limiter):
        pass


async def test_a_client_that_leaves_while_it_waits_takes_no_seat(tmp_path: Path, monkeypatch):
    states = SqliteStates(tmp_path / "limits.sqlite3")
    process = Common(states, "me")
    monkeypatch.setattr(shared_limits, "common", lambda: process)
    who = caller(Limits(concurrency=1))

    async def ask() -> None:
        async with admit(who, 0):
            await asyncio.sleep(30)

    for _ in range(20):
        asked = asyncio.create_task(ask())
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    deadline = time.monotonic() + 60
    while not let_in(process, who):
        assert time.monotonic() < deadline, "a seat is lost"
        await asyncio.sleep(0.01)
    states.close()


async def test_callers_without_limits_ask_no_store(monkeypatch):
    monkeypatch.setattr(shared_limits, "common", None)

    async with admit(caller(), 10, Limiter()) as seat:
        assert seat.headers == ()
