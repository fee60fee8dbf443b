"""One simulated world from one seed: minutes of the gateway in milliseconds, then the checks.

The consumer, admission, translation, upstream attempts, deadlines, pool and recorder are the
gateway's own. Time, network and disk are simulated. The process may be killed and restarted.
"""

import asyncio
import contextlib
import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from proxy.gateway.admission.cooldown import cooldown
from proxy.gateway.endpoints.http_consumer import RUNNING as TASKS
from proxy.gateway.snapshot.config_snapshot import (
    Caller,
    Limits,
    ModelAllowList,
    RouteEntry,
    Snapshot,
    TeamEntry,
    directory,
)
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.snapshot.targets import Target, UpstreamServer
from proxy.gateway.upstream import client as calling
from proxy.ledger.journal.journal import append_durably
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import CloseRecord, decode
from proxy.ledger.posting import orphans
from proxy.ledger.posting.ledger_writer import ExchangeRecords, group_records
from proxy.ledger.recorder import recorder
from proxy.live.running_requests import RUNNING
from proxy.models.setup.columns import Timeouts
from proxy.secrets import digest_of
from translator.capabilities import PROFILES

from .client import SECRET, Client
from .clock import VirtualLoop
from .disk import NUMBER, Disk, SimulatedJournal
from .network import TOKENS, SimulatedPool, Upstream, UpstreamCall
from .random_source import SeededRandom

DURATION_S = 600.0
TIMEOUTS = Timeouts(connect_s=5, first_byte_s=30, idle_s=30, total_s=240)
MAX_REQUEST_S = (
    2 * TIMEOUTS.connect_s + TIMEOUTS.total_s + 60 + 60
)  # plus delays of client and disk
RELEASE_S = 1.0
NAMES = {"chat": "generic", "responses": "openai", "anthropic": "anthropic"}


class WorldResult(NamedTuple):
    """The result of a world. ``trace`` is identical for the same seed."""

    seed: int
    faults: list[str]
    trace: str
    requests: int
    outcomes: Counter[str]


def reproduce_command(seed: int, requests: int) -> str:
    """Return the command that runs this world again and prints all faults."""
    return f"python -m tests.slow.simulation --requests {requests} --seed {seed}"


@dataclass
class World:
    seed: int
    requests: int
    folder: Path
    lives: int = 1
    disk: Disk = field(default_factory=Disk)
    clients: list[Client] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def run(self) -> WorldResult:
        rng = SeededRandom(self.seed)
        self.lives = rng.choice([1, 1, 2, 3])
        upstream = Upstream(rng, self.disk)
        with logging_disabled():
            for life in range(self.lives):
                first = 1 + len(self.clients)
                new_clients = [
                    Client.by(rng, first + n, DURATION_S / self.lives)
                    for n in range(self.requests // self.lives)
                ]
                self.clients += new_clients
                killed = life < self.lives - 1
                self._run_process(rng, upstream, new_clients, killed=killed)
            records_by_number = self._recovered_records()
        self.faults += upstream.faults
        for client in self.clients:
            self.faults += client.faults()
        self._check(upstream, records_by_number)
        outcomes = Counter(s.closing.outcome for s in records_by_number.values() if s.closing)
        return WorldResult(
            self.seed, self.faults, self._trace(upstream), len(self.clients), outcomes
        )

    def _run_process(
        self, rng: SeededRandom, upstream: Upstream, new_clients: list[Client], *, killed: bool
    ) -> None:
        """Run one process until its clients finish or it is killed."""
        loop = VirtualLoop()
        journal = SimulatedJournal(self.disk, rng)
        with gateway(loop, journal, upstream):
            running = loop.create_task(self._serve(rng, new_clients))
            if killed:
                kill_time = rng.uniform(0, DURATION_S / self.lives)
                loop.run_until_complete(asyncio.wait([running], timeout=kill_time))
                loop.call_soon(journal.die)
                for client in new_clients:
                    client.killed = client.ended_at is None
                running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(running)
            loop.run_until_complete(self._check_released(upstream, killed=killed))
        loop.close()

    async def _serve(self, rng: SeededRandom, new_clients: list[Client]) -> None:
        async with asyncio.TaskGroup() as group:
            for client in new_clients:
                group.create_task(client.run(rng))

    async def _check_released(self, upstream: Upstream, *, killed: bool) -> None:
        """I6: after the last response no request runs and no connection is open."""
        await asyncio.sleep(MAX_REQUEST_S if killed else 120)
        if killed:
            return
        current = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not current]
        if left or TASKS or RUNNING:
            self.faults.append(f"I6: still running: {left} {TASKS} {RUNNING}")
        if upstream.peers:
            self.faults.append(f"I6: {len(upstream.peers)} connections are open")

    def _recovered_records(self) -> dict[int, ExchangeRecords]:
        """Run the gateway's recovery on the disk; return the records of each request by number."""
        path = self.folder / f"journal-{self.seed}"
        path.mkdir()
        stored = self.disk.records()
        for at in range(0, len(stored), 200):
            append_durably(path, *stored[at : at + 200])
        records_found: dict[int, ExchangeRecords] = {}
        with contextlib.closing(JournalReader(path)) as own:
            own.read(len(stored) + 1)
            ids = own.unclosed_ids()
            for _ in orphans.close_orphans(own, ids, partial(append_durably, path)):
                pass
            own.read(len(stored) + 1)
            for name in own.ready_ids(len(stored) * 2 + 1):
                records = group_records(map(decode, own.bodies(name)))
                if records is None:  # a close record alone makes no row
                    continue
                match = NUMBER.search(records.opening.body or b"")
                if match is None:  # rejected: its body is not stored
                    continue
                number = int(match[1])
                if number in records_found:
                    self.faults.append(f"I1: request {number} has two rows")
                records_found[number] = records
        shutil.rmtree(path)
        return records_found

    def _check(self, upstream: Upstream, records_by_number: dict[int, ExchangeRecords]) -> None:
        calls: dict[int, list[UpstreamCall]] = {client.number: [] for client in self.clients}
        for call in upstream.calls:
            calls[call.number].append(call)
        for client in self.clients:
            records = records_by_number.get(client.number)
            for fault in self._client_faults(client, records, calls[client.number]):
                self.faults.append(f"{client.number}: {fault}")

    def _client_faults(
        self, client: Client, records: ExchangeRecords | None, calls: list[UpstreamCall]
    ) -> Iterator[str]:
        yield from _timing_faults(client, calls)
        if records is None:
            if calls or client.saw_complete_response:
                yield "I1: accepted, but without a row"
        elif records.closing is None:
            yield "I1: its row stays open"
        else:
            yield from _row_faults(records.closing, calls)
            if client.saw_complete_response and not (calls and calls[-1].plan.complete):
                yield "I3: the client received an end that the upstream did not send"
            if records.closing.outcome == "interrupted" and self.lives == 1:
                yield "I1: interrupted without a kill"

    def _trace(self, upstream: Upstream) -> str:
        seen = [
            *((c.number, c.status, len(c.body), c.ended_at, c.times) for c in self.clients),
            *((call.number, call.finished, call.closed_at) for call in upstream.calls),
            len(self.disk.synced),
        ]
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def _timing_faults(client: Client, calls: list[UpstreamCall]) -> Iterator[str]:
    """I6: no request takes too long, and an upstream is released when its client disconnects."""
    if client.ended_at is None:
        return
    if client.ended_at - client.start_s > MAX_REQUEST_S:
        yield f"it took {client.ended_at - client.start_s:.0f} s"
    closed_at = max((call.closed_at or 0.0 for call in calls if not call.finished), default=0.0)
    if client.disconnected_at is not None and closed_at > client.disconnected_at + RELEASE_S:
        yield f"I6: its upstream was released {closed_at - client.disconnected_at:.1f} s after the disconnect"


def _row_faults(closing: CloseRecord, calls: list[UpstreamCall]) -> Iterator[str]:
    """Check I2, I4 and I5."""
    if closing.outcome == "gateway_error":
        yield f"an internal error: {closing.detail} {closing.error_message}"
    if len(calls) > len(closing.attempts) and closing.outcome != "interrupted":
        yield f"I2: {len(calls)} calls, {len(closing.attempts)} attempts"
    if closing.outcome == "completed" and not (calls and calls[-1].plan.complete):
        yield "I4: completed, but the upstream did not complete its response"
    if closing.outcome != "completed" and closing.stop_reason:
        yield f"I4: {closing.outcome} with stop_reason {closing.stop_reason}"
    usage = closing.usage
    for name, count in zip(("input", "output"), TOKENS, strict=True):
        source = usage.get(f"{name}_source") or usage.get("source")
        if source == "reported" and usage[name] != count:
            yield f"I5: {usage}"


@contextlib.contextmanager
def logging_disabled() -> Iterator[None]:
    """Disable logging, because the simulation causes thousands of logged errors."""
    saved = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(saved)


@contextlib.contextmanager
def gateway(loop: VirtualLoop, journal: SimulatedJournal, upstream: Upstream) -> Iterator[None]:
    """Connect the gateway's modules to this loop, disk and network."""
    assert not directory.running, "another gateway runs in this process"
    saved = (directory.snapshot, directory.thread, directory.fresh, recorder.journal,
              cooldown.clock)  # fmt: skip
    directory.snapshot, directory.fresh = snapshot(), True
    directory.thread = object()  # type: ignore[assignment]  # marks the store as running
    recorder.journal = journal  # type: ignore[assignment]  # has the methods that the recorder uses
    cooldown.clock = loop.time
    cooldown.streaks.clear()
    calling.pools[loop] = SimulatedPool(upstream)
    try:
        yield
    finally:
        (directory.snapshot, directory.thread, directory.fresh, recorder.journal,
         cooldown.clock) = saved  # fmt: skip
        cooldown.streaks.clear()
        calling.pools.pop(loop, None)
        upstream.peers.clear()


def snapshot() -> Snapshot:
    """Build a snapshot with a team that stores content, its key, and a route to each dialect."""
    servers = {
        name: UpstreamServer.of(
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
    team = TeamEntry(
        name="simulated", ledger_id="simulated", store_full=True, models=ModelAllowList(),
        limits=Limits(),
    )  # fmt: skip
    caller = Caller(
        key_id=1, key_name="key", meter="simulated/key", team=team, user="",
        scopes=frozenset({"messages"}), models=ModelAllowList(), limits=Limits(), ip_allow=(), strict=False,
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
