"""One world from one seed: minutes of a gateway's life in milliseconds, and the verdict on it.

The consumer, admission, translation, pump, watch, wire, pool and recorder are the gateway's own.
Time, network and disk are simulated. Its process may be killed in the middle and start anew.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from proxy.gateway import upstream as calling
from proxy.gateway.base import RUNNING as TASKS
from proxy.gateway.cooldown import cooldown
from proxy.gateway.dialects import DIALECTS
from proxy.gateway.directory import (
    Caller,
    Globs,
    Limits,
    RouteEntry,
    Snapshot,
    TeamEntry,
    directory,
)
from proxy.gateway.targets import Server, Target, Timeouts
from proxy.live.running import RUNNING
from proxy.record import recovery, spool_file
from proxy.record.posting import Story, story_of
from proxy.record.recorder import recorder
from proxy.record.records import CloseRecord, decode, rows_of
from proxy.secrets import digest_of
from translator.profiles import PROFILES

from .chance import Chance
from .client import SECRET, Client
from .clock import VirtualLoop
from .disk import NUMBER, Disk, SimulatedSpool
from .network import TOKENS, Called, SimulatedPool, Upstream

LASTING_S = 600.0
TIMEOUTS = Timeouts(connect_s=5, first_byte_s=30, idle_s=30, total_s=240)
LONGEST_S = 2 * TIMEOUTS.connect_s + TIMEOUTS.total_s + 60 + 60  # and the client's and the disk's
RELEASE_S = 1.0
NAMES = {"chat": "generic", "responses": "openai", "anthropic": "anthropic"}


class Told(NamedTuple):
    """What became of a world. ``trace`` is the same for the same seed, to the byte."""

    seed: int
    faults: list[str]
    trace: str
    requests: int
    outcomes: Counter[str]


def again(seed: int, requests: int) -> str:
    """The command that plays this world once more and tells all of its faults."""
    return f"python -m tests.simulation --requests {requests} --seed {seed}"


@dataclass
class World:
    seed: int
    requests: int
    folder: Path
    lives: int = 1
    disk: Disk = field(default_factory=Disk)
    clients: list[Client] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def run(self) -> Told:
        chance = Chance(self.seed)
        self.lives = chance.choice([1, 1, 2, 3])
        upstream = Upstream(chance, self.disk)
        with quiet():
            for life in range(self.lives):
                first = 1 + len(self.clients)
                born = [
                    Client.by(chance, first + n, LASTING_S / self.lives)
                    for n in range(self.requests // self.lives)
                ]
                self.clients += born
                killed = life < self.lives - 1
                self._live(chance, upstream, born, killed=killed)
            stories = self._stories()
        self.faults += upstream.faults
        for client in self.clients:
            self.faults += client.faults()
        self._judge(upstream, stories)
        outcomes = Counter(s.closing.outcome for s in stories.values() if s.closing)
        return Told(self.seed, self.faults, self._trace(upstream), len(self.clients), outcomes)

    def _live(
        self, chance: Chance, upstream: Upstream, born: list[Client], *, killed: bool
    ) -> None:
        """One process, from its start to its end: by itself, or by ``kill -9``."""
        loop = VirtualLoop()
        spool = SimulatedSpool(self.disk, chance)
        with gateway(loop, spool, upstream):
            running = loop.create_task(self._serve(chance, born))
            if killed:
                moment = chance.uniform(0, LASTING_S / self.lives)
                loop.run_until_complete(asyncio.wait([running], timeout=moment))
                loop.call_soon(spool.die)
                for client in born:
                    client.cut = client.ended_at is None
                running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(running)
            loop.run_until_complete(self._settled(upstream, killed=killed))
        loop.close()

    async def _serve(self, chance: Chance, born: list[Client]) -> None:
        async with asyncio.TaskGroup() as group:
            for client in born:
                group.create_task(client.run(chance))

    async def _settled(self, upstream: Upstream, *, killed: bool) -> None:
        """I6: a minute after the last answer nothing runs, and no connection is held."""
        await asyncio.sleep(LONGEST_S if killed else 120)
        if killed:
            return
        me = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not me]
        if left or TASKS or RUNNING:
            self.faults.append(f"I6: still running: {left} {TASKS} {RUNNING}")
        if upstream.lines:
            self.faults.append(f"I6: {len(upstream.lines)} connections are held")

    def _stories(self) -> dict[int, Story]:
        """What the next start makes of the disk: orphans are closed by the gateway's recovery."""
        path = self.folder / f"spool-{self.seed}.sqlite3"
        with contextlib.closing(spool_file.create(path)) as link:
            link.execute("PRAGMA synchronous=OFF")  # no power goes here
            records = self.disk.records()
            for at in range(0, len(records), 200):
                spool_file.append(link, rows_of(records[at : at + 200]))
            orphans = spool_file.unclosed_ids(link)
            for _ in recovery.close_orphans(
                link, orphans, lambda *some: spool_file.append(link, rows_of(some))
            ):
                pass
            ids = [row[0] for row in link.execute("SELECT DISTINCT id FROM records WHERE kind = 0")]
            found: dict[int, Story] = {}
            for name in ids:
                told = [decode(body) for _, body in spool_file.bodies_of(link, name)]
                story = story_of(told)
                assert story is not None
                asked = NUMBER.search(story.opening.body or b"")
                if asked is None:  # refused: its words are not kept
                    continue
                number = int(asked[1])
                if number in found:
                    self.faults.append(f"I1: request {number} has two rows")
                found[number] = story
        for file in self.folder.glob(f"{path.name}*"):
            file.unlink()
        return found

    def _judge(self, upstream: Upstream, stories: dict[int, Story]) -> None:
        calls: dict[int, list[Called]] = {client.number: [] for client in self.clients}
        for call in upstream.calls:
            calls[call.number].append(call)
        for client in self.clients:
            told = stories.get(client.number)
            for fault in self._judged(client, told, calls[client.number]):
                self.faults.append(f"{client.number}: {fault}")

    def _judged(self, client: Client, story: Story | None, calls: list[Called]) -> Iterator[str]:
        yield from _in_time(client, calls)
        if story is None:
            if calls or client.heard_all:
                yield "I1: it was accepted and has no row"
        elif story.closing is None:
            yield "I1: its row stays open"
        else:
            yield from _honest(story.closing, calls)
            if client.heard_all and not (calls and calls[-1].play.well):
                yield "I3: the client was told an end that the upstream never said"
            if story.closing.outcome == "interrupted" and self.lives == 1:
                yield "I1: interrupted, and nobody was killed"

    def _trace(self, upstream: Upstream) -> str:
        seen = [
            *((c.number, c.status, len(c.body), c.ended_at, c.times) for c in self.clients),
            *((call.number, call.said_all, call.closed_at) for call in upstream.calls),
            len(self.disk.synced),
        ]
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def _in_time(client: Client, calls: list[Called]) -> Iterator[str]:
    """I6: nothing lasts for ever, and an upstream is let go when its client leaves."""
    if client.ended_at is None:
        return
    if client.ended_at - client.begin > LONGEST_S:
        yield f"it took {client.ended_at - client.begin:.0f} s"
    late = max((call.closed_at or 0.0 for call in calls if not call.said_all), default=0.0)
    if client.left_at is not None and late > client.left_at + RELEASE_S:
        yield f"I6: its upstream was released {late - client.left_at:.1f} s after it left"


def _honest(closing: CloseRecord, calls: list[Called]) -> Iterator[str]:
    """I2, I4 and I5."""
    if closing.outcome == "gateway_error":
        yield f"a fault of our own: {closing.detail} {closing.error_message}"
    if len(calls) > len(closing.attempts) and closing.outcome != "interrupted":
        yield f"I2: {len(calls)} calls, {len(closing.attempts)} attempts"
    if closing.outcome == "completed" and not (calls and calls[-1].play.well):
        yield "I4: completed, and its upstream never ended its answer"
    if closing.outcome != "completed" and closing.stop_reason:
        yield f"I4: {closing.outcome} with stop_reason {closing.stop_reason}"
    usage = closing.usage
    for name, count in zip(("input", "output"), TOKENS, strict=True):
        source = usage.get(f"{name}_source") or usage.get("source")
        if source == "reported" and usage[name] != count:
            yield f"I5: {usage}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Each fault is told in the log; a thousand of them are wanted here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def gateway(loop: VirtualLoop, spool: SimulatedSpool, upstream: Upstream) -> Iterator[None]:
    """The process's own parts, over this loop, disk and network."""
    assert not directory.running, "another gateway runs in this process"
    before = (directory.snapshot, directory._thread, directory.fresh, recorder._spool,
              cooldown._clock)  # fmt: skip
    directory.snapshot, directory.fresh = snapshot(), True
    directory._thread = object()  # type: ignore[assignment]  # it runs: nobody need start it
    recorder._spool = spool  # type: ignore[assignment]  # what the recorder asks of it is there
    cooldown._clock = loop.time
    cooldown.troubles.clear()
    calling._pools[loop] = SimulatedPool(upstream)
    try:
        yield
    finally:
        (directory.snapshot, directory._thread, directory.fresh, recorder._spool,
         cooldown._clock) = before  # fmt: skip
        cooldown.troubles.clear()
        calling._pools.pop(loop, None)
        upstream.lines.clear()


def snapshot() -> Snapshot:
    """A team whose words are kept, its key, and a route to each dialect."""
    servers = {
        name: Server.of(
            name=name,
            dialect=DIALECTS[name],
            dialect_name=name,
            base_url="http://upstream.example" + ("" if name == "anthropic" else "/v1"),
            secret="sk-upstream",
            profile=PROFILES[profile],
            timeouts=TIMEOUTS,
            extra_body={},
            capabilities={},
        )
        for name, profile in NAMES.items()
    }
    team = TeamEntry(name="simulated", store_full=True, models=Globs(), limits=Limits())
    caller = Caller(
        key_id=1, key_name="key", meter="simulated/key", team=team, user="",
        scopes=frozenset({"messages"}), models=Globs(), limits=Limits(), ip_allow=(), strict=False,
        events=frozenset(),
    )  # fmt: skip
    routes = {
        (None, f"{name}-x"): RouteEntry(
            model=f"{name}-x",
            team=None,
            pattern=None,
            weights=(1,),
            targets=(Target(server=server, model="*"),),
        )
        for name, server in servers.items()
    }
    return Snapshot(revision=1, keys={digest_of(SECRET): caller}, exact=routes)
