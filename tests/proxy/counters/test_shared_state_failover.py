"""Limit states during a Redis outage: counted locally, then written back to Redis."""

import pytest

from proxy.counters.budget_store import StoreUnavailable
from proxy.counters.budget_store_failover import PAUSE_S
from proxy.counters.shared_state import SqliteStates
from proxy.counters.shared_state_failover import (
    FailoverStates,
    MemoryStates,
    _changed,
    _newer,
)
from tests.fakes.clock import Clock


class Flaky(MemoryStates):
    """A store of all machines that can be unavailable and lose its data."""

    unavailable = False

    def change(self, names, change, local):
        if self.unavailable:
            raise StoreUnavailable("gone")
        try:
            return True, self.update(names, lambda texts: _changed(_newer(texts, local), change))
        except RuntimeError:
            return False, [text or "" for text in _newer(self.read(names), local)]

    def read(self, names):
        if self.unavailable:
            raise StoreUnavailable("gone")
        return super().read(names)


def count(states, *names):
    """Increment each of these counts; return the new values."""
    counts = []

    def change(texts):
        counts[:] = [int(text or 0) + 1 for text in texts]
        return [str(number) for number in counts]

    states.update(names, change)
    return counts


@pytest.fixture
def world(tmp_path):
    """A shared store, and two processes of one machine that fail over to the same file."""
    shared, clock = Flaky(), Clock(1_000_000.0)
    files = [SqliteStates(tmp_path / "limits.sqlite3") for _ in range(2)]
    yield shared, clock, [FailoverStates(shared, each, clock) for each in files]
    for each in files:
        each.close()


def test_an_outage_continues_from_the_last_known_count(world):
    shared, _, (one, other) = world
    count(one, "key", "team")
    count(other, "key")
    shared.unavailable = True

    assert count(one, "key", "team") == [3, 2]
    assert count(other, "key") == [4]
    assert one.degraded
    assert other.read(["key"]) == ["4"]


@pytest.mark.parametrize("loses_data", [False, True])
def test_counts_of_an_outage_are_written_back_to_redis(world, loses_data):
    shared, clock, (one, other) = world
    count(one, "key")
    shared.unavailable = True
    count(one, "key")
    count(other, "key")
    shared.unavailable = False
    if loses_data:
        shared.texts.clear()
    clock.at += PAUSE_S

    assert count(one, "key") == [4]
    assert count(other, "key") == [5]
    assert FailoverStates(shared, MemoryStates()).read(["key"]) == ["5"]


def test_an_exception_of_the_change_changes_nothing_and_starts_no_failover(world):
    _, _, (one, _) = world
    count(one, "key")

    def refuse(_):
        raise RuntimeError("full")

    with pytest.raises(RuntimeError):
        one.update(["key"], refuse)
    assert not one.degraded
    assert one.read(["key"]) == ["1"]


def test_an_unavailable_redis_is_not_called_for_a_while(world):
    shared, clock, (one, _) = world
    shared.unavailable = True
    count(one, "key")
    shared.unavailable = False
    assert count(one, "key") == [2]
    assert shared.read(["key"]) == [None]  # not called yet

    clock.at += PAUSE_S
    assert count(one, "key") == [3]
    assert FailoverStates(shared, MemoryStates()).read(["key"]) == ["3"]


class Delayed(MemoryStates):
    """The file store of a process that waits while others write: ``first`` runs before."""

    def __init__(self, file, first):
        super().__init__()
        self.file, self.first = file, [first]

    def update(self, names, change, *, busy_s=None):
        while self.first:
            self.first.pop()()
        return self.file.update(names, change, busy_s=busy_s)

    def read(self, names):
        return self.file.read(names)


def test_a_late_local_write_does_not_undo_newer_counts(world):
    shared, clock, (one, other) = world

    def others_count_alone():
        shared.unavailable = True
        for _ in range(5):
            count(other, "key")

    late = FailoverStates(shared, Delayed(one.local, others_count_alone), clock)
    assert count(late, "key") == [1]

    assert other.read(["key"]) == ["5"]  # at most the count in progress is lost
    shared.unavailable = False
    clock.at += PAUSE_S
    assert count(one, "key") == [6]


@pytest.mark.parametrize(
    "garbage", ["", "nonsense", "{}", ":", "-1:4", "1e3:4", "9" * 5000 + ":4", "4"]
)
def test_a_malformed_state_counts_as_missing(world, garbage):
    shared, _, (one, _) = world
    shared.texts["key"] = garbage

    assert one.read(["key"]) == [None]
    assert count(one, "key") == [1]


def test_a_request_does_not_wait_for_another_writer_and_nothing_is_lost(world):
    shared, _, (one, other) = world
    writer = other.local._file.connect()
    writer.execute("BEGIN IMMEDIATE")

    assert count(one, "key") == [1]
    assert count(one, "team") == [1]
    writer.execute("ROLLBACK")
    shared.unavailable = True

    assert count(one, "key") == [2]
    assert other.read(["key", "team"]) == ["2", "1"]
