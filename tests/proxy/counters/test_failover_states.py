"""Limits while Redis is away: counted here, from where they were, and told to Redis afterwards."""

import pytest

from proxy.counters.failover import PAUSE_S
from proxy.counters.failover_states import FailoverStates, MemoryStates
from proxy.counters.states import SqliteStates
from proxy.counters.store import StoreAway

from .conftest import Clock


class Flaky(MemoryStates):
    """A store that can be away, and forget."""

    away = False

    def update(self, names, change):
        if self.away:
            raise StoreAway("gone")
        super().update(names, change)

    def read(self, names):
        if self.away:
            raise StoreAway("gone")
        return super().read(names)


def count(states, *names):
    """One more in each of these; returns what they say now."""
    seen = []

    def change(texts):
        seen[:] = [int(text or 0) + 1 for text in texts]
        return [str(number) for number in seen]

    states.update(names, change)
    return seen


@pytest.fixture
def world(tmp_path):
    """A shared store, and two processes of one machine that fail over to the same file."""
    shared, clock = Flaky(), Clock()
    files = [SqliteStates(tmp_path / "limits.sqlite3") for _ in range(2)]
    yield shared, clock, [FailoverStates(shared, each, clock) for each in files]
    for each in files:
        each.close()


def test_an_outage_goes_on_from_the_last_known_count(world):
    shared, _, (one, other) = world
    count(one, "key", "team")
    count(other, "key")
    shared.away = True

    assert count(one, "key", "team") == [3, 2]
    assert count(other, "key") == [4]
    assert one.degraded
    assert other.read(["key"]) == ["4"]


@pytest.mark.parametrize("forgets", [False, True])
def test_redis_learns_afterwards_what_was_counted_meanwhile(world, forgets):
    shared, clock, (one, other) = world
    count(one, "key")
    shared.away = True
    count(one, "key")
    count(other, "key")
    shared.away = False
    if forgets:
        shared._texts.clear()
    clock.at += PAUSE_S

    assert count(one, "key") == [4]
    assert count(other, "key") == [5]
    assert FailoverStates(shared, MemoryStates()).read(["key"]) == ["5"]


def test_what_refuses_changes_nothing_and_is_no_outage(world):
    _, _, (one, _) = world
    count(one, "key")

    def refuse(_):
        raise RuntimeError("full")

    with pytest.raises(RuntimeError):
        one.update(["key"], refuse)
    assert not one.degraded
    assert one.read(["key"]) == ["1"]


def test_an_absent_redis_is_left_alone_for_a_while(world):
    shared, clock, (one, _) = world
    shared.away = True
    count(one, "key")
    shared.away = False
    assert count(one, "key") == [2]
    assert shared.read(["key"]) == [None]  # not asked yet

    clock.at += PAUSE_S
    assert count(one, "key") == [3]
    assert FailoverStates(shared, MemoryStates()).read(["key"]) == ["3"]


class Held(MemoryStates):
    """Of a process that waits for the file while others write: ``meanwhile`` comes first."""

    def __init__(self, file, meanwhile):
        super().__init__()
        self.file, self.meanwhile = file, [meanwhile]

    def update(self, names, change):
        while self.meanwhile:
            self.meanwhile.pop()()
        self.file.update(names, change)

    def read(self, names):
        return self.file.read(names)


def test_who_writes_down_late_what_redis_said_undoes_nothing(world):
    shared, clock, (one, other) = world

    def others_count_alone():
        shared.away = True
        for _ in range(5):
            count(other, "key")

    late = FailoverStates(shared, Held(one._local, others_count_alone), clock)
    assert count(late, "key") == [1]

    assert other.read(["key"]) == ["5"]  # of six at most the one that was under way is lost
    shared.away = False
    clock.at += PAUSE_S
    assert count(one, "key") == [6]


@pytest.mark.parametrize(
    "garbage", ["", "nonsense", "{}", ":", "-1:4", "1e3:4", "9" * 5000 + ":4", "4"]
)
def test_what_none_of_us_can_have_written_is_nothing(world, garbage):
    shared, _, (one, _) = world
    shared._texts["key"] = garbage

    assert one.read(["key"]) == [None]
    assert count(one, "key") == [1]
