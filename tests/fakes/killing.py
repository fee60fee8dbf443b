"""kill -9 of the whole gateway under a crowd of streams, again and again, and the verdict."""

import itertools
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

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
    """``lives`` kills it so many times; ``verdict`` lets it recover and reads the books."""

    def __init__(self, folder: Path, player: ScriptedUpstream, *, streams: int) -> None:
        self.gateway = Gateway(folder, config=config_for(player), ready_within_s=120)
        self.player = player
        self.streams = streams
        self.sent: list[Sent] = []
        self.numbers = itertools.count(1)
        player.choose(chat_answer)

    def lives(self, kills: int, seed: int = 1) -> Iterator[int]:
        """Yields, after each kill, how many upstream calls it cut off."""
        chance = random.Random(seed)  # noqa: S311 -- chance, not secrecy
        self.gateway.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(kills):
            self.gateway.start()
            yield self._one_life(chance.random() * 1.5)

    def _one_life(self, longer_s: float) -> int:
        """Let the crowd in, wait for its first call and a random while longer, kill."""
        before = len(self.player.asked)
        gateway = self.gateway
        with Crowd(gateway.port, gateway.key, "crowd", self.streams, self.numbers) as crowd:
            self.player.wait_until(lambda asked: len(asked) > before, within_s=60)
            time.sleep(longer_s)
            gateway.stop(signal.SIGKILL)
        self.sent += crowd.sent
        self.player.wait_until(lambda asked: all(each.ending for each in asked[before:]))
        return sum(each.ending == "client_gone" for each in self.player.asked[before:])

    def verdict(self) -> Verdict:
        self.gateway.start()
        wait_until_drained(self.gateway)
        self.gateway.stop()
        return judge(self.sent, self.player.asked, self.gateway.rows().values())


def wait_until_drained(gateway: Gateway, *, within_s: float = 120) -> float:
    """Until nothing waits for the database; the seconds it took."""
    began = time.monotonic()
    while True:
        told = json.loads(gateway.ask("GET", "/readyz").body)
        if told["backlog"] == 0 and not told["degraded"]:
            return time.monotonic() - began
        assert time.monotonic() - began < within_s, told
        time.sleep(0.2)
