"""Several gateways on one PostgreSQL and one Redis, and load clients that use them in turn."""

import contextlib
import itertools
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.load.load_client import LoadClients, Sent, Verdict, compare_records
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

from .gateway import Gateway
from .redis_server import RedisServer

SECRET_KEY = "nodes-that-share-a-database-share-a-secret-key-" + "0123456789abcdef" * 2


class Nodes:
    """Gateways with separate data directories and a shared database, Redis and secret key."""

    def __init__(
        self,
        folder: Path,
        config: str,
        postgres: Postgres,
        redis: RedisServer,
        environment: Mapping[str, str],
        *,
        size: int = 2,
        workers: int = 1,
    ) -> None:
        shared = {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "BRIDGE_SECRET_KEY": SECRET_KEY,
            **environment,
        }
        self.all = [
            Gateway(
                folder / f"node-{number}",
                config=config,
                environment=shared,
                workers=workers,
                ready_within_s=120,
            )
            for number in range(size)
        ]
        self.redis = redis
        self._url = postgres.url
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def running(self) -> Iterator["Nodes"]:
        """Start all nodes at the same time; stop them at the end."""
        for node in self.all:
            node.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
            for node, starting in [(n, pool.submit(n.start)) for n in self.all]:
                starting.result()
                stack.callback(node.stop)
            yield self

    def load_clients(self, size: int, *, pause_s: float = 0.2) -> LoadClients:
        """Return load clients that use the nodes in turn and continue when a node fails."""
        first, *others = (node.port for node in self.all)
        return LoadClients(
            first, self.all[0].key, "load", size, self._numbers,
            pause_s=pause_s, other_ports=others, continues_after_cut=True,
        )  # fmt: skip

    def kill(self, number: int) -> None:
        self.all[number].stop(signal.SIGKILL)

    def wait_until_drained(self) -> None:
        for node in self.all:
            wait_until_drained(node)

    def verdict(self, sent: Sequence[Sent], upstream: ScriptedUpstream) -> Verdict:
        self.wait_until_drained()
        requests = [each for each in upstream.requests if each.model == "load"]
        return compare_records(sent, requests, self.all[0].rows().values())

    def ledger_cost(self, team: str) -> int:
        """Return the cost of a team in the ledger, in nano-dollars."""
        of_team = "team = (SELECT ledger_id FROM proxy_team WHERE name = %s)"
        query = f"SELECT coalesce(sum(cost_nanousd), 0) FROM proxy_exchange WHERE {of_team}"  # noqa: S608 - constants
        return int(self.query_database(query, team)[0])

    def redis_counter(self, team: str) -> dict[str, int]:
        """Return the Redis counter's ``spent`` in nano-dollars, and other sums that are not zero."""
        query = "SELECT b.id FROM proxy_budget b JOIN proxy_team t ON t.id = b.team_id WHERE t.name = %s"
        (budget,) = self.query_database(query, team)
        found: Counter[str] = Counter()
        for key in self.redis.client.scan_iter(f"bridge:{{budget}}:{budget}:*"):
            for field, text in self.redis.client.hgetall(key).items():
                found[field.decode()] += int(text.split()[0])
        return {name: value for name, value in found.items() if value or name == "spent"}

    def query_database(self, query: str, *values: Any) -> Any:
        """Return the first row of a query on the shared database."""
        with psycopg.connect(self._url) as connection:
            return connection.execute(query, values).fetchone()
