"""The board on which processes tell each other what runs: a file, or Redis."""

import pytest

from proxy.counters.redis_store import client_of
from proxy.counters.states import RedisStates, SqliteStates
from proxy.live.board import Board
from proxy.live.messenger import messenger
from tests.fakes.redis_server import PATIENT_S, running_redis

from .live_world import Still

__all__ = ["running_redis"]


@pytest.fixture(params=["sqlite", "redis"])
def states(request, tmp_path):
    if request.param == "sqlite":
        made = SqliteStates(tmp_path / "live.sqlite3")
        yield made
        made.close()
        return
    server = request.getfixturevalue("running_redis")
    server.client.flushall()
    link = client_of(server.url, PATIENT_S)
    yield RedisStates(link)
    link.close()


def test_processes_tell_each_other_and_hear_orders(states):
    now = [1000.0]
    left, right = (Board(states, name, lambda: now[0]) for name in ("left", "right"))

    assert left.read() == (False, {})
    assert right.watch() == []
    assert left.read() == (True, {})
    left.write([Still("req_1").row])
    assert [row["id"] for row in right.watch()] == ["req_1"]
    assert left.watch() == []
    right.order("req_1", "ada")
    assert left.read()[1] == {"req_1": "ada"}
    now[0] += 31
    assert left.read() == (False, {})
    assert right.watch() == []


def test_a_process_that_ends_takes_its_page_down(states):
    left, right = (Board(states, name) for name in ("left", "right"))
    left.write([Still("req_1").row])

    left.leave()

    assert right.watch() == []


def test_what_nobody_wrote_is_nothing(states):
    names = ["live watch", "live orders", "live members"]
    states.update(names, lambda _: ["nonsense", "[]", "7"])

    assert Board(states, "left").read() == (False, {})
    assert Board(states, "left").watch() == []


def test_one_process_alone_needs_no_board():
    messenger.start()

    assert messenger.board is None
    assert messenger.elsewhere() == []
