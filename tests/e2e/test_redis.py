"""Redis goes wrong under a gateway of two processes: promises.md R01 to R05, each by its name.

One gateway for all, started while there is no Redis; each fault has a team of its own.
"""

import contextlib
import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from proxy.counters.windows import window
from proxy.record.spending import counter_of
from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.redis_server import RedisServer, running_redis
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

__all__ = ["running_redis"]

POOR = ("POOR1", "POOR3", "POOR4", "POOR5")
FAST = ("FAST1", "FAST2", "FAST3", "FAST4", "FAST5")
SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{(name + 'x') * 8}" for name in POOR + FAST}
RPM, WORKERS = 60, 2
ROOM = 4 * 50_000 + 950_000
"""Nano-dollars: an answer costs 50,000 and may cost 1,000,000, so the fifth has no room."""
CONTROL = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]

[[prices]]
upstream = "chat"
model = "m"
since = 2026-01-01
usd = { input = "0", output = "10" }
""" + "".join(
    f"""
[[teams]]
name = "{name.lower()}"
{rule}

[[keys]]
team = "{name.lower()}"
name = "k"
secret = {{ env = "BRIDGE_KEY_{name}" }}
"""
    for names, rule in (
        (POOR, f'budgets = [{{ usd = "{ROOM / 10**9:.6f}" }}]'),
        (FAST, f"limits = {{ rpm = {RPM} }}"),
    )
    for name in names
)
ASKED = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
AWAY = "Redis is away: this machine counts budgets and limits for itself"


class World:
    """A gateway, its Redis, and the keys of two teams."""

    def __init__(self, gateway: Gateway, redis: RedisServer) -> None:
        self.gateway, self.redis = gateway, redis

    def ask(self, name: str) -> tuple[int, dict[str, Any]]:
        headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{name}"], "content-type": "application/json"}
        raw = json.dumps(ASKED).encode()
        reply = self.gateway.ask("POST", "/v1/messages", raw, headers, authorised=False)
        return reply.status, json.loads(reply.body)

    def statuses(self, name: str, size: int) -> list[int]:
        return [self.ask(name)[0] for _ in range(size)]

    @property
    def degraded(self) -> list[str]:
        told = json.loads(self.gateway.ask("GET", "/readyz").body)["degraded"]
        return [str(one) for one in told]

    def limit(self, name: str) -> str:
        return f"bridge:limit:team {name.lower()}"

    def has(self, name: str) -> bool:
        return bool(self.redis.client.exists(name))

    def budgets(self) -> set[str]:
        return {key.decode() for key in self.redis.client.scan_iter("bridge:budget:*")}

    def spent(self, name: str) -> int:
        """As Redis has it, when nothing is held any more."""
        until(lambda: self.redis.client.hkeys(name) == [b"spent"])
        return int(self.redis.client.hget(name, "spent") or 0)

    def spend_all(self, name: str) -> str:
        """Four answers are settled and in the ledger; a fifth has no room. The counter's name."""
        counter = self.counter(name)
        for number in range(4):
            assert self.ask(name)[0] == 200
            until(lambda at=number + 1: self.spent(counter) == at * 50_000)
        return counter

    def counter(self, name: str) -> str:
        """The key in Redis of this team's only budget."""
        path = self.gateway.folder / "data" / "ledger.sqlite3"
        question = (
            "SELECT b.id FROM proxy_budget b JOIN proxy_team t ON t.id = b.team_id WHERE t.name = ?"
        )
        with contextlib.closing(sqlite3.connect(path)) as link:
            ((budget,),) = link.execute(question, (name.lower(),)).fetchall()
        return f"bridge:budget:{counter_of(budget, window('month', 'UTC', time.time()))}"


def until(condition, within_s: float = 90) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def is_spent(world: World, name: str) -> bool:
    """The exact answer of a budget without room."""
    status, body = world.ask(name)
    return (status, body.get("error", {}).get("type")) == (402, "billing_error")


@pytest.fixture(scope="module")
def started(
    running_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """The gateway was started, its Redis (one of our own, for it is killed here) was not."""
    folder = tmp_path_factory.mktemp("redis-faults")
    redis = RedisServer(folder)
    with ScriptedUpstream() as player:
        player.on("m", json_answer(scripts.COMPLETION))
        config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, CONTROL)
        environment = {**SECRETS, "REDIS_URL": redis.url}
        made = Gateway(
            folder / "gateway", config=config, workers=WORKERS, environment=environment,
            ready_within_s=120,
        )  # fmt: skip
        with made as gateway:
            yield World(gateway, redis)
    redis.end()


@pytest.fixture
def world(started: World) -> World:
    """Redis is there, and in use by both processes."""
    try:
        started.redis.client.ping()
    except redis.RedisError:
        started.redis.start()
    until(lambda: all(AWAY not in started.degraded for _ in range(8)))
    return started


def test_r01_redis_is_down_at_the_start(started: World):
    """It starts, counts for itself exactly, and uses Redis when there is one."""
    began = time.monotonic()
    seen = Counter(started.statuses("FAST1", RPM + 20))
    lasted = time.monotonic() - began

    assert set(seen) <= {200, 429}
    assert RPM <= seen[200] <= RPM + lasted * RPM / 60 + WORKERS
    assert started.ask("POOR1")[0] == 200
    until(lambda: AWAY in started.degraded)

    started.redis.start()
    until(lambda: started.ask("FAST1")[0] in {200, 429} and started.has(started.limit("FAST1")))
    until(lambda: started.ask("POOR1")[0] in {200, 402} and started.budgets())
    until(lambda: AWAY not in started.degraded)


def test_r02_redis_dies_under_load(world: World):
    """No error, and what gets in stays the limit give or take the processes."""
    seen: list[int] = []
    began = time.monotonic()

    def crowd(size: int) -> list[threading.Thread]:
        def one() -> None:
            seen.append(world.ask("FAST2")[0])

        threads = [threading.Thread(target=one) for _ in range(size)]
        for thread in threads:
            thread.start()
        return threads

    def over(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()

    over(crowd(RPM // 2))
    assert Counter(seen) == {200: RPM // 2}
    running = crowd(RPM // 2)
    world.redis.kill()
    over([*running, *crowd(RPM // 2)])
    until(lambda: AWAY in world.degraded)
    world.redis.start()  # and remembers nothing
    until(lambda: (seen.append(world.ask("FAST2")[0]), world.has(world.limit("FAST2")))[1])
    over(crowd(RPM // 2))
    until(lambda: (seen.append(world.ask("FAST2")[0]), 429 in seen)[1])
    lasted = time.monotonic() - began

    assert set(seen) == {200, 429}
    assert RPM - WORKERS <= seen.count(200) <= RPM + lasted * RPM / 60 + WORKERS


def test_r03_redis_takes_longer_than_anybody_waits(world: World):
    """As long as it may take, then this machine goes on; all are answered before Redis answers."""
    assert world.statuses("FAST3", 4) == [200] * 4
    world.redis.client.execute_command("CLIENT", "PAUSE", "600000", "ALL")  # until it is killed
    try:
        seen = [*world.statuses("FAST3", 20), world.ask("POOR3")[0]]
        with redis.Redis.from_url(world.redis.url, socket_timeout=0.2) as asked:
            with pytest.raises(redis.TimeoutError):  # it still answers nobody
                asked.ping()
            assert seen == [200] * 21
    finally:
        world.redis.kill()


def test_r04_redis_is_flushed(world: World):
    """Budgets come back from the ledger, once however many ask."""
    counter = world.spend_all("POOR4")
    assert is_spent(world, "POOR4")
    world.redis.client.flushall()

    threads = [threading.Thread(target=world.ask, args=("POOR4",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert is_spent(world, "POOR4")
    assert world.spent(counter) == 4 * 50_000
    assert world.ask("FAST4")[0] == 200


GARBAGE = (
    ("SET", "{}", "nonsense"),
    ("RPUSH", "{}", "a"),
    ("HSET", "{}", "spent", "1e9"),
    ("HSET", "{}", "h:x", "y"),
)


def test_r05_redis_is_full_of_garbage_under_our_names(world: World):
    counter, limit = world.spend_all("POOR5"), world.limit("FAST5")
    assert world.ask("FAST5")[0] == 200
    for command, _, *rest in GARBAGE:
        for name in (counter, limit):
            with world.redis.client.pipeline() as both:  # nobody writes in between
                both.delete(name)
                both.execute_command(command, name, *rest)
                both.execute()

        assert is_spent(world, "POOR5")
        assert world.ask("FAST5")[0] == 200
        assert world.spent(counter) == 4 * 50_000
        _, _, meter = world.redis.client.get(limit).partition(b":")
        assert json.loads(meter)["requests"][0] == RPM
