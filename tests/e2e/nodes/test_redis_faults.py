"""Faults of Redis under a gateway (faults R01 to R05).

In the fast lane the gateway has one process, in the slow lane two. All tests share one gateway, which
starts without Redis. Each fault has its own team.
"""

import contextlib
import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from proxy.counters.budget_periods import window
from proxy.ledger.posting.budget_sync import counter_name
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.redis_server import RedisServer
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

pytestmark = pytest.mark.repeated
POOR = ("POOR1", "POOR3", "POOR4", "POOR5")
FAST = ("FAST1", "FAST2", "FAST3", "FAST4", "FAST5")
SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{(name + 'x') * 8}" for name in POOR + FAST}
RPM, WORKERS = 30, repeat(fast=1, slow=2)
ROOM = 4 * 50_000 + 950_000
"""Budget in nano-dollars: a response costs 50,000 and may cost 1,000,000, so the fifth is rejected."""
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
REQUEST = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
DEGRADED_TEXT = "Redis is away: this machine counts budgets and limits for itself"


class RedisEnvironment:
    """A gateway, its Redis, and the keys of two teams."""

    def __init__(self, gateway: Gateway, redis: RedisServer) -> None:
        self.gateway, self.redis = gateway, redis

    def send_request(self, name: str) -> tuple[int, dict[str, Any]]:
        headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{name}"], "content-type": "application/json"}
        raw = json.dumps(REQUEST).encode()
        reply = self.gateway.request("POST", "/v1/messages", raw, headers, authorized=False)
        return reply.status, json.loads(reply.body)

    def statuses(self, name: str, size: int) -> list[int]:
        return [self.send_request(name)[0] for _ in range(size)]

    @property
    def degraded(self) -> list[str]:
        texts = json.loads(self.gateway.request("GET", "/readyz").body)["degraded"]
        return [str(send) for send in texts]

    def limit(self, name: str) -> str:
        team = name.lower()
        return f"bridge:limit:{{{team}}}:team {team}"

    def has(self, name: str) -> bool:
        return bool(self.redis.client.exists(name))

    def budgets(self) -> set[str]:
        return {key.decode() for key in self.redis.client.scan_iter("bridge:{budget}:*")}

    def spent(self, name: str) -> int:
        """Return the spent amount in Redis when no reservation is open."""
        until(
            lambda: (
                self.redis.client.exists(name)
                and not self.redis.client.exists(f"{name}:open", f"{name}:settled")
            )
        )
        return int(self.redis.client.hget(name, "spent") or 0)

    def spend_all(self, name: str) -> str:
        """Send four requests and wait until they are settled; return the counter's key in Redis."""
        counter = self.counter(name)
        for number in range(4):
            assert self.send_request(name)[0] == 200
            until(lambda at=number + 1: self.spent(counter) == at * 50_000)
        return counter

    def counter(self, name: str) -> str:
        """Return the Redis key of the team's only budget."""
        path = self.gateway.folder / "data" / "ledger.sqlite3"
        query = (
            "SELECT b.id FROM proxy_budget b JOIN proxy_team t ON t.id = b.team_id WHERE t.name = ?"
        )
        with contextlib.closing(sqlite3.connect(path)) as connection:
            ((budget,),) = connection.execute(query, (name.lower(),)).fetchall()
        return "bridge:{budget}:" + f"{counter_name(budget, window('month', 'UTC', time.time()))}"


def is_budget_exhausted(redis_environment: RedisEnvironment, name: str) -> bool:
    """Return whether the gateway rejects a request because the budget is exhausted."""
    status, body = redis_environment.send_request(name)
    return (status, body.get("error", {}).get("type")) == (402, "billing_error")


@pytest.fixture(scope="module")
def running_environment(
    running_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisEnvironment]:
    """A running gateway whose own Redis server is not started yet."""
    folder = tmp_path_factory.mktemp("redis-faults")
    redis = RedisServer(folder)
    with ScriptedUpstream() as upstream:
        upstream.on("m", json_response(upstream_scripts.COMPLETION))
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, CONTROL)
        environment = {**SECRETS, "REDIS_URL": redis.url}
        new_gateway = Gateway(
            folder / "gateway", config=config, workers=WORKERS, environment=environment,
            ready_within_s=120,
        )  # fmt: skip
        with new_gateway as gateway:
            yield RedisEnvironment(gateway, redis)
    redis.close()


@pytest.fixture
def redis_environment(running_environment: RedisEnvironment) -> RedisEnvironment:
    """The environment with Redis running and used by each process."""
    try:
        running_environment.redis.client.ping()
    except redis.RedisError:
        running_environment.redis.start()
    until(lambda: all(DEGRADED_TEXT not in running_environment.degraded for _ in range(8)))
    return running_environment


def test_r01_redis_is_down_at_the_start(running_environment: RedisEnvironment):
    """The gateway starts, counts locally, and uses Redis as soon as it is available."""
    start = time.monotonic()
    statuses = Counter(running_environment.statuses("FAST1", RPM + 20))
    duration = time.monotonic() - start

    assert set(statuses) <= {200, 429}
    assert RPM <= statuses[200] <= RPM + duration * RPM / 60 + WORKERS
    assert running_environment.send_request("POOR1")[0] == 200
    until(lambda: DEGRADED_TEXT in running_environment.degraded)

    running_environment.redis.start()
    until(
        lambda: (
            running_environment.send_request("FAST1")[0] in {200, 429}
            and running_environment.has(running_environment.limit("FAST1"))
        )
    )
    until(
        lambda: (
            running_environment.send_request("POOR1")[0] in {200, 402}
            and running_environment.budgets()
        )
    )
    until(lambda: DEGRADED_TEXT not in running_environment.degraded)


def test_r02_redis_dies_under_load(redis_environment: RedisEnvironment):
    """No request fails, and the number of accepted requests is the limit plus or minus the processes."""
    statuses: list[int] = []
    start = time.monotonic()

    def start_requests(size: int) -> list[threading.Thread]:
        def send() -> None:
            statuses.append(redis_environment.send_request("FAST2")[0])

        threads = [threading.Thread(target=send) for _ in range(size)]
        for thread in threads:
            thread.start()
        return threads

    def join_all(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()

    join_all(start_requests(RPM // 2))
    assert Counter(statuses) == {200: RPM // 2}
    running = start_requests(RPM // 2)
    redis_environment.redis.kill()
    join_all([*running, *start_requests(RPM // 2)])
    until(lambda: DEGRADED_TEXT in redis_environment.degraded)
    redis_environment.redis.start()  # with no data
    until(
        lambda: (
            statuses.append(redis_environment.send_request("FAST2")[0]),
            redis_environment.has(redis_environment.limit("FAST2")),
        )[1]
    )
    join_all(start_requests(RPM // 2))
    until(lambda: (statuses.append(redis_environment.send_request("FAST2")[0]), 429 in statuses)[1])
    duration = time.monotonic() - start

    assert set(statuses) == {200, 429}
    assert RPM - WORKERS <= statuses.count(200) <= RPM + duration * RPM / 60 + WORKERS


def test_r03_redis_responds_after_the_timeout(redis_environment: RedisEnvironment):
    """After the Redis timeout the process counts locally; all requests end before Redis responds."""
    assert redis_environment.statuses("FAST3", 4) == [200] * 4
    # The pause lasts until the kill below.
    redis_environment.redis.client.execute_command("CLIENT", "PAUSE", "600000", "ALL")
    try:
        with ThreadPoolExecutor(21) as pool:  # the timeout is five seconds
            pending = [
                pool.submit(redis_environment.send_request, name)
                for name in ["FAST3"] * 20 + ["POOR3"]
            ]
            statuses = [each.result()[0] for each in pending]
        with redis.Redis.from_url(redis_environment.redis.url, socket_timeout=0.2) as client:
            with pytest.raises(redis.TimeoutError):  # it still does not respond
                client.ping()
            assert statuses == [200] * 21
    finally:
        redis_environment.redis.kill()


def test_r04_redis_is_flushed(redis_environment: RedisEnvironment):
    """Budgets are loaded from the ledger again, once for many concurrent requests."""
    counter = redis_environment.spend_all("POOR4")
    assert is_budget_exhausted(redis_environment, "POOR4")
    redis_environment.redis.client.flushall()

    threads = [
        threading.Thread(target=redis_environment.send_request, args=("POOR4",)) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert is_budget_exhausted(redis_environment, "POOR4")
    assert redis_environment.spent(counter) == 4 * 50_000
    assert redis_environment.send_request("FAST4")[0] == 200


INVALID_VALUES = (
    ("SET", "{}", "nonsense"),
    ("RPUSH", "{}", "a"),
    ("HSET", "{}", "spent", "1e9"),
    ("HSET", "{}", "h:x", "y"),
)


def test_r05_redis_has_invalid_values_under_the_gateways_keys(redis_environment: RedisEnvironment):
    counter, limit = redis_environment.spend_all("POOR5"), redis_environment.limit("FAST5")
    assert redis_environment.send_request("FAST5")[0] == 200
    for command, _, *rest in INVALID_VALUES:
        for name in (counter, limit):
            with redis_environment.redis.client.pipeline() as pipeline:  # no other write in between
                pipeline.delete(name)
                pipeline.execute_command(command, name, *rest)
                pipeline.execute()

        assert is_budget_exhausted(redis_environment, "POOR5")
        assert redis_environment.send_request("FAST5")[0] == 200
        assert redis_environment.spent(counter) == 4 * 50_000
        _, _, meter = redis_environment.redis.client.get(limit).partition(b":")
        assert json.loads(meter)["requests"][0] == RPM
