"""One set of laws for both engines: what fits is held, what is held is given back."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.counters import redis_store, sqlite_store
from proxy.counters.failover import PAUSE_S, FailoverBudgets
from proxy.counters.redis_store import RedisBudgets
from proxy.counters.sqlite_store import SqliteBudgets
from proxy.counters.store import Ceiling, Standing, StoreAway
from tests.fakes.redis_server import PATIENT_S, RedisServer

from .conftest import Clock

TEAM = Ceiling("team", 100)
KEY = Ceiling("key", 40)


def test_a_counter_that_was_never_seeded_is_told_and_nothing_is_held(store):
    store.publish("team", 0)

    assert store.reserve("r1", "me", 10, [TEAM, KEY]).unknown == ("key",)
    assert store.standing("team") == Standing(0, 0, 0)
    assert store.standing("key") is None


def test_all_ceilings_must_have_room_or_none_is_touched(store):
    store.publish("team", 50)
    store.publish("key", 35)

    verdict = store.reserve("r1", "me", 10, [TEAM, KEY])

    assert verdict.full == (("key", Standing(35, 0, 0)),)
    assert store.standing("team") == Standing(50, 0, 0)
    assert store.reserve("r2", "me", 5, [TEAM, KEY]).granted
    assert store.standing("key") == Standing(35, 0, 5)


def test_what_costs_nothing_passes_a_full_counter_and_a_soft_one_only_counts(store):
    store.publish("team", 200)

    assert store.reserve("free", "me", 0, [TEAM]).granted
    assert not store.reserve("paid", "me", 1, [TEAM]).granted
    assert store.reserve("soft", "me", 1, [Ceiling("team", None)]).granted


def test_a_request_goes_from_reserved_to_settled_to_spent_and_is_never_counted_twice(store):
    store.publish("team", 7)
    store.reserve("r1", "me", 30, [TEAM])
    store.settle("r1", ["team"], 12)
    assert store.standing("team") == Standing(7, 12, 0)

    assert store.fold("team", {"r1": 12}) == set()
    assert store.standing("team") == Standing(19, 0, 0)
    assert store.fold("team", {"r1": 12}) == {"r1"}
    store.settle("r1", ["team"], 12)
    store.release("r1", ["team"])
    assert store.standing("team") == Standing(19, 0, 0)


def test_a_released_request_leaves_nothing(store):
    store.publish("team", 0)
    store.reserve("r1", "me", 30, [TEAM])
    store.release("r1", ["team"])

    assert store.standing("team") == Standing(0, 0, 0)
    assert store.held("team") == []


def test_publishing_is_absolute_and_drops_the_holds_of_posted_requests(store):
    store.publish("team", 5)
    store.reserve("posted", "me", 30, [TEAM])
    store.reserve("running", "me", 20, [TEAM])

    store.publish("team", 31, ["posted"])
    store.publish("team", 31, ["posted"])

    assert store.standing("team") == Standing(31, 0, 20)


def test_of_fifty_at_once_only_those_that_fit_get_in(store):
    store.publish("team", 0)
    start = threading.Barrier(10)

    def ask(worker: int) -> int:
        start.wait()
        return sum(store.reserve(f"r{worker}-{i}", "me", 25, [TEAM]).granted for i in range(5))

    with ThreadPoolExecutor(10) as pool:
        granted = sum(pool.map(ask, range(10)))

    assert granted == 4
    assert store.standing("team") == Standing(0, 0, 100)


def test_the_reservations_of_a_dead_process_end_and_those_of_a_living_one_are_renewed(
    store, monkeypatch
):
    module = sqlite_store if isinstance(store, SqliteBudgets) else redis_store
    store.publish("team", 0)
    monkeypatch.setattr(module, "LEASE_S", 0.0)
    store.reserve("dead", "one", 60, [TEAM])
    store.reserve("renewed", "two", 20, [TEAM])
    store.reserve("settled", "one", 20, [TEAM])
    store.settle("settled", ["team"], 3)
    monkeypatch.setattr(module, "LEASE_S", 60.0)
    store.renew("two", ["team"])

    assert store.standing("team") == Standing(0, 3, 20)
    store.publish("team", 0)
    assert sorted(store.held("team")) == ["renewed", "settled"]


def test_forgotten_periods_must_be_seeded_again(store):
    store.publish("team", 3)
    store.reserve("r1", "me", 1, [TEAM])
    store.forget(["team"])

    assert store.standing("team") is None
    assert store.held("team") == []


def test_both_engines_always_say_the_same(tmp_path, redis_server: RedisServer):
    ours, theirs = SqliteBudgets(tmp_path / "c.sqlite3"), RedisBudgets(redis_server.url, PATIENT_S)
    chance = random.Random(5)  # noqa: S311 - chance, not secrecy
    moves = ("reserve", "settle", "release", "fold", "publish", "standing", "forget")
    for step in range(1_500):
        move = chance.choices(moves, (8, 4, 2, 4, 1, 4, 0.1))[0]
        name, counter = f"r{chance.randrange(20)}", chance.choice(["team", "key"])
        arguments = {
            "reserve": (name, "me", chance.randrange(30), [TEAM, KEY][: chance.randint(1, 2)]),
            "settle": (name, [counter], chance.randrange(30)),
            "release": (name, [counter]),
            "fold": (counter, {name: chance.randrange(30), "r0": 1}),
            "publish": (counter, chance.randrange(60), [name]),
            "standing": (counter,),
            "forget": ([counter],),
        }[move]
        said = [getattr(store, move)(*arguments) for store in (ours, theirs)]
        assert said[0] == said[1], (step, move, arguments)
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "garbage",
    [("set", "bridge:budget:team", "x"), ("hset", "bridge:budget:team", "spent", "lots")],
    ids=["another type", "no number"],
)
def test_garbage_under_our_keys_is_replaced(redis_server: RedisServer, garbage):
    store = RedisBudgets(redis_server.url, PATIENT_S)
    command, *arguments = garbage
    getattr(redis_server.client, command)(*arguments)

    assert store.reserve("r1", "me", 1, [TEAM]).unknown == ("team",)
    assert store.held("team") == []
    store.publish("team", 4)
    redis_server.client.hset("bridge:budget:team", "h:r9", "nonsense")
    assert store.reserve("r1", "me", 1, [TEAM]).granted
    assert store.standing("team") == Standing(4, 0, 1)
    store.close()


def test_while_redis_is_away_the_machine_counts_for_itself(tmp_path, redis_server: RedisServer):
    clock = Clock()
    local = SqliteBudgets(tmp_path / "c.sqlite3")
    shared = RedisBudgets(redis_server.url, PATIENT_S)
    store = FailoverBudgets(shared, local, clock)
    store.publish("team", 90)
    redis_server.kill()
    try:
        assert not store.reserve("r1", "me", 20, [TEAM]).granted
        assert store.degraded
        assert store.reserve("r2", "me", 10, [TEAM]).granted
        with pytest.raises(StoreAway):
            store.publish("team", 80)
    finally:
        redis_server.start()

    clock.at += PAUSE_S
    assert store.reserve("r3", "me", 1, [TEAM]).unknown == ("team",)
    store.publish("team", 80)
    assert store.reserve("r3", "me", 20, [TEAM]).granted
    shared.close()
    local.close()


def test_what_runs_when_redis_goes_away_is_held_here_as_well(tmp_path, redis_server: RedisServer):
    local = SqliteBudgets(tmp_path / "c.sqlite3")
    shared = RedisBudgets(redis_server.url, PATIENT_S)
    store = FailoverBudgets(shared, local)
    store.publish("team", 40)
    assert store.reserve("r1", "me", 50, [TEAM]).granted
    redis_server.kill()
    try:
        assert not store.reserve("r2", "me", 20, [TEAM]).granted
        store.settle("r1", ["team"], 5)
        assert store.reserve("r2", "me", 20, [TEAM]).granted
        with pytest.raises(StoreAway):
            store.fold("team", {"r1": 5})
        assert local.standing("team") == Standing(45, 0, 20)
    finally:
        redis_server.start()
    shared.close()
    local.close()


def test_a_redis_that_stalls_is_left_alone(tmp_path, redis_server: RedisServer):
    local = SqliteBudgets(tmp_path / "c.sqlite3")
    shared = RedisBudgets(redis_server.url, 0.1)
    store = FailoverBudgets(shared, local, clock=lambda: 1.0)
    local.publish("team", 0)
    redis_server.client.execute_command("CLIENT", "PAUSE", "60000", "ALL")
    try:
        assert store.reserve("r1", "me", 10, [TEAM]).granted
    finally:
        redis_server.kill()
        redis_server.start()

    assert store.degraded
    assert local.standing("team") == Standing(0, 0, 10)
    shared.close()
    local.close()


def test_the_file_is_for_its_owner_only(tmp_path):
    path = tmp_path / "c.sqlite3"
    store = SqliteBudgets(path)
    store.publish("team", 1)

    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    store.close()


def test_a_store_that_cannot_be_opened_says_so(tmp_path):
    with pytest.raises(StoreAway):
        SqliteBudgets(tmp_path / "missing" / "c.sqlite3").standing("team")
