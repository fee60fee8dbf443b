"""Both budget stores: an amount within the limit is reserved, then settled or released."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from proxy.counters.failover import PAUSE_S, FailoverStore
from proxy.counters.redis_store import RedisStore
from proxy.counters.sqlite_store import SqliteStore
from proxy.counters.store import (
    AppliedCosts,
    Kind,
    Standing,
    StoreUnavailable,
    Take,
    Taken,
    UsedChange,
)
from tests.fakes.clock import Clock
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S, RedisServer

TEAM = ("team", 100)
KEY = ("key", 40)


def reserve(store, request_id, holder, amount, limits) -> Taken:
    """Reserve an amount in several budgets, given as counter and limit."""
    takes = [Take(counter, amount, limit) for counter, limit in limits]
    return store.take(request_id, holder, takes)


def test_an_unseeded_counter_is_reported_and_nothing_is_reserved(store):
    store.publish("team", 0)

    assert reserve(store, "r1", "me", 10, [TEAM, KEY]).unknown == ("key",)
    assert store.standing("team") == Standing(0, 0, 0)
    assert store.standing("key") is None


def test_many_counters_are_read_together_without_the_unknown_ones(store):
    for number in range(0, 120, 3):
        store.publish(f"team {number}", number)
    reserve(store, "r1", "me", 10, [("team 3", 100)])

    found = store.standings([f"team {number}" for number in range(120)])

    assert {name: standing.spent for name, standing in found.items()} == {
        f"team {number}": number for number in range(0, 120, 3)
    }
    assert found["team 3"] == Standing(3, 0, 10)
    assert store.standings([]) == {}


def test_an_exceeded_limit_leaves_all_counters_unchanged(store):
    store.publish("team", 50)
    store.publish("key", 35)

    result = reserve(store, "r1", "me", 10, [TEAM, KEY])

    assert result == Taken(granted=False, standings=(Standing(50, 0, 0), Standing(35, 0, 0)))
    assert store.standing("team") == Standing(50, 0, 0)
    assert reserve(store, "r2", "me", 5, [TEAM, KEY]).granted
    assert store.standing("key") == Standing(35, 0, 5)


def test_a_full_counter_grants_a_soft_limit(store):
    store.publish("team", 200)

    assert not reserve(store, "paid", "me", 1, [TEAM]).granted
    assert reserve(store, "soft", "me", 1, [("team", None)]).granted


def test_a_request_moves_from_reserved_to_settled_to_spent_once(store):
    store.publish("team", 7)
    reserve(store, "r1", "me", 30, [TEAM])
    assert store.settle("r1", ["team", "key"], 12) == {"team": UsedChange(7, 19)}
    assert store.standing("team") == Standing(7, 12, 0)

    assert store.apply_posted("team", {"r1": 12}) == AppliedCosts(used=UsedChange(19, 19))
    assert store.standing("team") == Standing(19, 0, 0)
    assert store.apply_posted("team", {"r1": 12}) == AppliedCosts(
        frozenset({"r1"}), UsedChange(19, 19)
    )
    store.settle("r1", ["team"], 12)
    store.release("r1", ["team"])
    assert store.standing("team") == Standing(19, 0, 0)


def test_a_released_request_leaves_no_reservation(store):
    store.publish("team", 0)
    reserve(store, "r1", "me", 30, [TEAM])
    store.release("r1", ["team"])

    assert store.standing("team") == Standing(0, 0, 0)
    assert [*store.reserved_ids("team")] == []


def test_publishing_sets_the_sum_and_drops_the_reservations_of_posted_requests(store):
    store.publish("team", 5)
    reserve(store, "posted", "me", 30, [TEAM])
    reserve(store, "running", "me", 20, [TEAM])

    for _ in range(2):
        store.mark_posted("team", ["posted"])
        assert store.standing("team") == Standing(35, 0, 20)
    assert store.publish("team", 31) == Standing(31, 0, 20)

    assert store.standing("team") == Standing(31, 0, 20)


def test_of_fifty_concurrent_requests_only_those_within_the_limit_are_granted(store):
    store.publish("team", 0)
    start = threading.Barrier(10)

    def reserve_five(worker: int) -> int:
        start.wait()
        return sum(reserve(store, f"r{worker}-{i}", "me", 25, [TEAM]).granted for i in range(5))

    with ThreadPoolExecutor(10) as pool:
        granted = sum(pool.map(reserve_five, range(10)))

    assert granted == 4
    assert store.standing("team") == Standing(0, 0, 100)


def test_the_reservations_of_a_dead_process_expire_and_those_of_a_live_one_are_renewed(
    store, open_store
):
    store.publish("team", 0)
    expired = open_store(lease_s=-1.0)  # Redis has its own clock, which no test sets
    reserve(expired, "dead", "one", 60, [TEAM])
    reserve(expired, "renewed", "two", 20, [TEAM])
    reserve(expired, "settled", "one", 20, [TEAM])
    expired.settle("settled", ["team"], 3)
    store.renew("two", {"team": None})

    assert store.standing("team") == Standing(0, 3, 20)
    store.publish("team", 0)
    assert sorted(chain(*store.reserved_ids("team"))) == ["renewed", "settled"]


def test_a_forgotten_period_must_be_seeded_again(store):
    store.publish("team", 3)
    reserve(store, "r1", "me", 1, [TEAM])
    store.forget(["team"])

    assert store.standing("team") is None
    assert [*store.reserved_ids("team")] == []


def test_both_engines_return_equal_results(tmp_path, redis_server: RedisServer):
    sqlite, redis = (
        SqliteStore(tmp_path / "c.sqlite3"),
        RedisStore(redis_server.url, REDIS_TIMEOUT_S),
    )
    rng = random.Random(5)  # noqa: S311 - not for secrets
    odds = {"take": 8, "settle": 4, "release": 2, "apply_posted": 4, "mark_posted": 2,
            "publish": 1, "standing": 4, "forget": 0.1}  # fmt: skip
    for step in range(1_500):
        method = rng.choices([*odds], [*odds.values()])[0]
        name, counter = f"r{rng.randrange(20)}", rng.choice(["team", "key"])
        arguments = {
            "take": (
                name,
                "me",
                [
                    Take(*each)
                    for each in (("team", rng.randrange(30), 100), ("key", rng.randrange(30), 40))[
                        : rng.randint(1, 2)
                    ]
                ],
            ),
            "settle": (name, [counter], rng.randrange(30)),
            "release": (name, [counter]),
            "apply_posted": (counter, {name: rng.randrange(30), "r0": 1}),
            "mark_posted": (counter, [name]),
            "publish": (counter, rng.randrange(60)),
            "standing": (counter,),
            "forget": ([counter],),
        }[method]
        results = [getattr(store, method)(*arguments) for store in (sqlite, redis)]
        assert results[0] == results[1], (step, method, arguments)
    sqlite.close()
    redis.close()


@pytest.mark.parametrize(
    "garbage",
    [("set", "bridge:{budget}:team", "x"), ("hset", "bridge:{budget}:team", "spent", "lots")],
    ids=["another type", "no number"],
)
def test_a_malformed_redis_value_is_replaced(redis_server: RedisServer, garbage):
    store = RedisStore(redis_server.url, REDIS_TIMEOUT_S)
    command, *arguments = garbage
    getattr(redis_server.client, command)(*arguments)

    assert reserve(store, "r1", "me", 1, [TEAM]).unknown == ("team",)
    assert [*store.reserved_ids("team")] == []
    store.publish("team", 4)
    for part in ("open", "settled", "leases"):
        redis_server.client.hset(f"bridge:{{budget}}:team:{part}", "r9", "nonsense")
    assert reserve(store, "r1", "me", 1, [TEAM]).granted
    assert store.settle("r9", ["team"], 1) == {}
    assert store.publish("team", 4) == Standing(4, 0, 1)
    store.close()


def test_the_scripts_read_only_the_keys_of_the_gateway(redis_server: RedisServer):
    """Other keys may be forbidden to its user, on another node of a cluster, or of another type."""
    redis_server.client.acl_setuser(
        "gateway", enabled=True, passwords=["+word"], keys=["bridge:*"], categories=["+@all"]
    )
    url = redis_server.url.replace("//", "//gateway:word@")
    store = RedisStore(url, REDIS_TIMEOUT_S)
    limits = [Take("limit 1 key 2", 1, 9, kind) for kind in (Kind.SLOTS, Kind.RATE)]
    limits[1] = limits[1]._replace(counter="limit 1 key 2 rpm 9")
    store.publish("team", 0)

    assert reserve(store, "r1", "me", 7, [TEAM]).granted
    assert store.peek([Take("team", 7)]) == [Standing(0, 0, 7)]
    assert store.take("", "me", limits).granted
    store.add("me", limits)
    store.renew("me", {"team": None, limits[0].counter: 1})
    assert store.settle("r1", ["team"], 5) == {"team": UsedChange(0, 5)}
    store.mark_posted("team", ["r1"])
    assert store.apply_posted("team", {"r1": 5}).missing == {"r1"}
    store.release("r1", ["team"])
    store.forget(["team"])
    store.close()


def test_while_redis_is_unavailable_the_machine_counts_by_itself(
    tmp_path, redis_server: RedisServer
):
    clock = Clock(1_000_000.0)
    local = SqliteStore(tmp_path / "c.sqlite3")
    shared = RedisStore(redis_server.url, REDIS_TIMEOUT_S)
    store = FailoverStore(shared, local, clock)
    store.publish("team", 90)
    redis_server.kill()
    try:
        assert not reserve(store, "r1", "me", 20, [TEAM]).granted
        assert store.degraded
        assert reserve(store, "r2", "me", 10, [TEAM]).granted
        with pytest.raises(StoreUnavailable):
            store.publish("team", 80)
    finally:
        redis_server.start()

    clock.at += PAUSE_S
    assert reserve(store, "r3", "me", 1, [TEAM]).unknown == ("team",)
    store.publish("team", 80)
    assert reserve(store, "r3", "me", 20, [TEAM]).granted
    shared.close()
    local.close()


def test_a_request_that_runs_at_the_start_of_a_redis_outage_is_reserved_locally_too(
    tmp_path, redis_server: RedisServer
):
    local = SqliteStore(tmp_path / "c.sqlite3")
    shared = RedisStore(redis_server.url, REDIS_TIMEOUT_S)
    store = FailoverStore(shared, local)
    store.publish("team", 40)
    assert reserve(store, "r1", "me", 50, [TEAM]).granted
    redis_server.kill()
    try:
        assert not reserve(store, "r2", "me", 20, [TEAM]).granted
        store.settle("r1", ["team"], 5)
        assert reserve(store, "r2", "me", 20, [TEAM]).granted
        with pytest.raises(StoreUnavailable):
            store.apply_posted("team", {"r1": 5})
        assert local.standing("team") == Standing(45, 0, 20)
    finally:
        redis_server.start()
    shared.close()
    local.close()


def test_a_stalled_redis_is_not_called_for_a_while(tmp_path, redis_server: RedisServer):
    local = SqliteStore(tmp_path / "c.sqlite3")
    shared = RedisStore(redis_server.url, 0.1)
    store = FailoverStore(shared, local, clock=lambda: 1.0)
    local.publish("team", 0)
    redis_server.client.execute_command("CLIENT", "PAUSE", "60000", "ALL")
    try:
        assert reserve(store, "r1", "me", 10, [TEAM]).granted
    finally:
        redis_server.kill()
        redis_server.start()

    assert store.degraded
    assert local.standing("team") == Standing(0, 0, 10)
    shared.close()
    local.close()


def test_the_file_is_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "c.sqlite3"
    store = SqliteStore(path)
    store.publish("team", 1)

    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    store.close()


def test_a_store_that_cannot_be_opened_raises(tmp_path):
    with pytest.raises(StoreUnavailable):
        SqliteStore(tmp_path / "missing" / "c.sqlite3").standing("team")


def test_the_work_of_a_call_does_not_depend_on_the_number_of_reservations(tmp_path):
    """While the database is unavailable, settled requests accumulate."""
    store = SqliteStore(tmp_path / "c.sqlite3")
    store.publish("team", 0)

    def instructions() -> int:
        """Count the instructions of SQLite's virtual machine for one request, in hundreds."""
        counts = []
        store._file.connect().set_progress_handler(lambda: counts.append(1) and None, 100)
        try:
            reserve(store, "one", "me", 1, [("team", 10**9)])
            store.renew("me", {"team": None})
            store.settle("one", ["team"], 1)
        finally:
            store._file.connect().set_progress_handler(None, 0)
        store.release("one", ["team"])
        return len(counts)

    few = instructions()
    with store._change() as connection:
        connection.executemany(
            "INSERT INTO requests VALUES ('team', ?, 1, NULL)", [(f"r{n}",) for n in range(5_000)]
        )

    assert instructions() <= few + 2
    store.close()
