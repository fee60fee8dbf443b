"""Entries of a session's calls: who can read them, how long they last, and how many there may be."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.counters.redis_client import client_of
from proxy.counters.session_calls import (
    ENTRY_LIFETIME_S,
    MAX_CALLS,
    MAX_NAMES,
    MAX_SESSION,
    NAME_LIFETIME_S,
    PREFIX,
    RedisCalls,
    SqliteCalls,
)
from proxy.counters.store import StoreUnavailable
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S

START = 1_800_000_000.0


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["file", "redis"])
def store(request, tmp_path, clock):
    if request.param == "file":
        yield SqliteCalls(tmp_path / "calls.sqlite3", clock)
        return
    client = client_of(request.getfixturevalue("redis_server").url, REDIS_TIMEOUT_S)
    yield RedisCalls(client, clock)
    client.close()


def test_a_session_has_its_entries_and_no_others(store):
    assert not store.has_origin("o")
    assert store.load("o", "s") == {}

    assert store.save("o", "s", {"call_1": '["",{}]', "call_2": "[2]"})
    assert store.save("o", "s", {"call_2": "[3]"})

    assert store.has_origin("o")
    assert store.load("o", "s") == {"call_1": '["",{}]', "call_2": "[3]"}
    assert store.load("o", "other") == store.load("other", "s") == {}
    assert not store.has_origin("other")


def test_an_entry_expires_and_its_name_is_forgotten_later(store, clock):
    store.save("o", "s", {"old": "[1]"})
    clock.now += ENTRY_LIFETIME_S + 1
    assert store.load("o", "s") == {"old": None}

    store.save("o", "s", {"new": "[2]"})

    assert store.load("o", "s") == {"old": None, "new": "[2]"}


def test_the_file_deletes_what_expired(tmp_path, clock):
    store = SqliteCalls(tmp_path / "calls.sqlite3", clock)
    store.save("o", "s", {"old": "[1]"})
    clock.now += ENTRY_LIFETIME_S + 1
    store.has_origin("o")
    with sqlite3.connect(tmp_path / "calls.sqlite3") as connection:
        assert connection.execute("SELECT name, entry FROM calls").fetchall() == [("old", None)]

    clock.now += NAME_LIFETIME_S

    assert not store.has_origin("o")
    assert store.load("o", "s") == {}


def test_redis_deletes_what_expired(redis_server):
    client = client_of(redis_server.url, REDIS_TIMEOUT_S)
    RedisCalls(client).save("ttl", "s", {"a": "[1]"})

    lives = sorted(client.ttl(key) for key in client.scan_iter(f"{PREFIX}*ttl*"))
    client.close()

    assert [ENTRY_LIFETIME_S - 60 < lives[0] <= ENTRY_LIFETIME_S, len(lives)] == [True, 3]
    assert all(NAME_LIFETIME_S - 60 < seconds <= NAME_LIFETIME_S for seconds in lives[1:])


@pytest.mark.parametrize(
    ("count", "length", "entries_of", "names_of"),
    [
        pytest.param(MAX_CALLS // 2, 3, {3, 4}, {0, 1, 2, 3, 4}, id="entries"),
        pytest.param(1, MAX_SESSION // 2, {3, 4}, {0, 1, 2, 3, 4}, id="characters"),
        pytest.param(MAX_NAMES // 4, 3, {4}, {1, 2, 3, 4}, id="names"),
    ],
)
def test_the_oldest_entries_of_a_session_go_first(
    store, clock, *, count, length, entries_of, names_of
):
    """Of five equal saves, as many of the newest are left as the limit allows."""
    saves = [{f"{save}-{number}": "x" * length for number in range(count)} for save in range(5)]
    for calls in saves:
        clock.now += 1
        store.save("o", "s", calls)

    expected = {
        name: entry if save in entries_of else None
        for save in names_of
        for name, entry in saves[save].items()
    }
    assert store.load("o", "s") == expected


def test_a_full_file_keeps_only_names(tmp_path, clock):
    store = SqliteCalls(tmp_path / "calls.sqlite3", clock, max_file_bytes=0)

    assert not store.save("o", "s", {"a": "[1]"})
    assert store.load("o", "s") == {"a": None}


def test_concurrent_writers_lose_no_entry(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.save("o", "c", {str(n): "[1]"}), range(24)))

    assert len(store.load("o", "c")) == 24


def test_an_unreachable_store_is_reported(tmp_path):
    missing = SqliteCalls(tmp_path / "no folder" / "calls.sqlite3")
    unreachable = RedisCalls(client_of("redis://127.0.0.1:1"))

    assert missing.load("o", "s") == {}
    for call in (
        lambda: missing.save("o", "s", {"a": "[1]"}),
        lambda: unreachable.save("o", "s", {"a": "[1]"}),
        lambda: unreachable.load("o", "s"),
        lambda: unreachable.has_origin("o"),
    ):
        with pytest.raises(StoreUnavailable):
            call()
