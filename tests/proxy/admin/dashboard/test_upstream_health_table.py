"""The store through which processes share their running requests: a file, or Redis."""

import time

import pytest

from proxy.counters.redis_store import RedisStore
from proxy.counters.sqlite_store import SqliteStore
from proxy.live.live_view_sync import live_view_sync
from proxy.live.running_requests import RUNNING, StopOrder, stop_selected
from proxy.live.shared_live_view import LiveViewStore
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S
from tests.proxy.admin.live.live_fixtures import FakeRunningRequest


@pytest.fixture(params=["sqlite", "redis"])
def states(request, tmp_path):
    if request.param == "sqlite":
        store = SqliteStore(tmp_path / "live.sqlite3")
        yield store
        store.close()
        return
    server = request.getfixturevalue("running_redis")
    server.client.flushall()
    store = RedisStore(server.url, REDIS_TIMEOUT_S)
    yield store
    store.close()


def test_processes_exchange_rows_and_stop_orders(states):
    now = [1000.0]
    left, right = (LiveViewStore(states, name, lambda: now[0]) for name in ("left", "right"))

    assert left.read() == (False, [])
    assert right.watch() == []
    assert left.read() == (True, [])
    left.write([FakeRunningRequest("req_1").row])
    assert [row["id"] for row in right.watch()] == ["req_1"]
    assert left.watch() == []
    right.request_stop(StopOrder("id", "req_1", "ada"))
    right.request_stop(StopOrder("team_id", "team_1", "ada"))
    right.request_stop(StopOrder("team_id", "team_1", "ben"))
    assert [order[:3] for order in left.read()[1]] == [
        ("id", "req_1", "ada"),
        ("team_id", "team_1", "ben"),
    ]
    now[0] += 31
    assert left.read() == (False, [])
    assert right.watch() == []


def test_a_process_removes_its_rows_when_it_ends(states):
    left, right = (LiveViewStore(states, name) for name in ("left", "right"))
    left.write([FakeRunningRequest("req_1").row])

    left.clear_own_rows()

    assert right.watch() == []


def test_invalid_stored_values_are_ignored(states):
    names = ["live watch", "live orders", "live members"]
    states.update(names, lambda _: ["invalid", "{}", "7"])

    assert LiveViewStore(states, "left").read() == (False, [])
    assert LiveViewStore(states, "left").watch() == []


def test_a_single_process_needs_no_shared_store():
    live_view_sync.start("worker")

    assert live_view_sync.store is None
    assert live_view_sync.rows_elsewhere() == []


def test_an_order_that_is_read_late_stops_no_later_request():
    earlier = FakeRunningRequest("req_1", age_ms=3_600_000.0, team_id="team_1", user_id="user_1")
    later = FakeRunningRequest("req_2", age_ms=1_000.0, team_id="team_1", user_id="user_1")
    RUNNING.update(req_1=earlier, req_2=later)
    try:
        stop_selected(StopOrder("team_id", "team_1", "ada", given=time.time() - 60))
    finally:
        del RUNNING["req_1"], RUNNING["req_2"]

    assert (earlier.stopped_by, later.stopped_by) == ("ada", "")
