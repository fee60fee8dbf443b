"""Several gateways on one PostgreSQL and one Redis, and a crowd that goes to them in turn."""

import contextlib
import itertools
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from tests.proxy.record.postgres import Postgres

from .crowd import Crowd, Sent, Verdict, judge
from .gateway import Gateway
from .killing import wait_until_drained
from .redis_server import RedisServer
from .upstream import ScriptedUpstream

SECRET_KEY = "nodes-that-share-a-database-share-a-secret-key-" + "0123456789abcdef" * 2


class Nodes:
    """Each node has a data directory of its own; database, Redis and secret key are shared."""

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
        """All of them start at the same moment, on whatever the database holds."""
        for node in self.all:
            node.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
            for node, starting in [(n, pool.submit(n.start)) for n in self.all]:
                starting.result()
                stack.callback(node.stop)
            yield self

    def crowd(self, size: int, *, pause_s: float = 0.2) -> Crowd:
        """Clients that go on whatever happens to a node, and go to the nodes in turn."""
        first, *others = (node.port for node in self.all)
        return Crowd(
            first, self.all[0].key, "crowd", size, self._numbers,
            pause_s=pause_s, others=others, stays=True,
        )  # fmt: skip

    def kill(self, number: int) -> None:
        self.all[number].stop(signal.SIGKILL)

    def drained(self) -> None:
        for node in self.all:
            wait_until_drained(node)

    def verdict(self, sent: Sequence[Sent], player: ScriptedUpstream) -> Verdict:
        self.drained()
        asked = [each for each in player.asked if each.model == "crowd"]
        return judge(sent, asked, self.all[0].rows().values())

    def ask_database(self, question: str, *values: Any) -> Any:
        """The first row of an answer, from outside all nodes."""
        with psycopg.connect(self._url) as link:
            return link.execute(question, values).fetchone()
