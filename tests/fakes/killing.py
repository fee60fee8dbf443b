"""The whole gateway ended under a crowd of streams, again and again, and the verdict."""

import contextlib
import http.client
import itertools
import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from .crashing import Nursery
from .crowd import Crowd, Sent, Verdict, chat_answer, judge
from .gateway import Gateway, toml_for
from .upstream import ScriptedUpstream

ROUTES = """
[[routes]]
model = "crowd"
targets = [{ upstream = "chat" }]
"""


def config_for(player: ScriptedUpstream) -> str:
    return toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, ROUTES)


class Killing:
    """``lives`` ends it so many times; ``verdict`` lets it recover and reads the books.

    ``how``: SIGKILL, or SIGTERM for a restart as an operator does it. The lives are children of one
    process that has imported everything, so that each costs a fraction of a second; the last one,
    of the verdict, is a process as any.
    """

    def __init__(
        self,
        folder: Path,
        player: ScriptedUpstream,
        *,
        streams: int,
        how: signal.Signals = signal.SIGKILL,
        **environment: str,
    ) -> None:
        config = config_for(player)
        self.gateway = Nursery(folder, config=config, environment=environment)
        self.player = player
        self.streams = streams
        self.how = how
        self.sent: list[Sent] = []
        self.numbers = itertools.count(1)
        player.choose(chat_answer)

    def lives(self, times: int, *, seed: int = 1, at_most_s: float = 1.5) -> Iterator[int]:
        """Yields, after each end, how many upstream calls it cut off."""
        chance = random.Random(seed)  # noqa: S311 -- chance, not secrecy
        with held_port() as self.gateway.port:
            self.gateway.begin()
            try:
                for _ in range(times):
                    self.gateway.live(None)
                    assert ready(self.gateway, 120), self.gateway.log
                    yield self._one_life(chance.random() * at_most_s)
            finally:
                self.gateway.close()

    def _one_life(self, longer_s: float) -> int:
        """Let the crowd in, wait for its first call and a random while longer, end it."""
        before = len(self.player.asked)
        gateway = self.gateway
        with Crowd(gateway.port, gateway.key, "crowd", self.streams, self.numbers) as crowd:
            self.player.wait_until(lambda asked: len(asked) > before, within_s=60)
            time.sleep(longer_s)
            gateway.kill(self.how)
        self.sent += crowd.sent
        self.player.wait_until(lambda asked: all(each.ending for each in asked[before:]))
        return sum(each.ending == "client_gone" for each in self.player.asked[before:])

    def verdict(self) -> Verdict:
        self.gateway.start()
        wait_until_drained(self.gateway)
        self.gateway.stop()
        return judge(self.sent, self.player.asked, self.gateway.rows().values())


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port that nobody else is given while the gateway is down, and that it may listen on."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def ready(gateway: Nursery, within_s: float) -> bool:
    """Until it answers, or has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not gateway.ended(0.05):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if gateway.ask("GET", "/readyz").status == 200:
                return True
    return False


def wait_until_drained(gateway: Gateway, *, within_s: float = 120) -> float:
    """Until nothing waits for the database; the seconds it took."""
    began = time.monotonic()
    while True:
        told = json.loads(gateway.ask("GET", "/readyz").body)
        if told["backlog"] == 0 and not told["degraded"]:
            return time.monotonic() - began
        assert time.monotonic() - began < within_s, told
        time.sleep(0.2)
