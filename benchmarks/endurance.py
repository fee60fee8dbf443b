"""Run many streams for a long time; check that no event is lost or late and that memory is flat.

    python -m benchmarks.endurance --streams 200 --rate 10 --idle 2000 --minutes 10

``numbered.py`` detects missing, duplicate and late events. Idle streams send one event every ten
seconds, for two minutes: a response stays in memory until its end, so longer ones would grow it.

Clients start one after the other, ``--arrivals`` per second, as the clients of a team do. From
minute 5 on, when SQLite's caches are full, a straight line through the memory must be flat; in a
shorter run the rise over the last two thirds counts. At the end the numbers of files, threads and
running requests (each is one task) must equal those at the start. All processes of the gateway
count together. Exit code 1: an event was missing or duplicate, a stream broke off, memory was not
flat, or files, threads or requests remained.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.fakes.servers.gateway import Gateway

from .numbered import ONCE, Tally, client, counting_gateway, spread

IDLE_RATE = 0.1  # events per second
BARS = "▁▂▃▄▅▆▇█"
WARM_MINUTES = 5.0
LONG_MINUTES = 8.0
FLAT_SLOPE = 1.0  # MB per ten minutes
FLAT_MB = 5.0
"""Allowed rise from the start to the end of the last two thirds of a short run."""


# The watched process


class Sample(NamedTuple):
    """One sample over all processes of the gateway."""

    minutes: float
    mb: dict[str, float]  # by process; shared pages count in each process
    files: int
    threads: int

    @property
    def memory(self) -> float:
        return sum(self.mb.values())


def process_tree(pid: int) -> Iterator[Path]:
    """Yield the folders in /proc of a process and of its descendants."""
    folder = Path("/proc", str(pid))
    yield folder
    for listed in folder.glob("task/*/children"):
        for child in listed.read_text(encoding="ascii").split():
            yield from process_tree(int(child))


def fields_of(file: Path, *names: str) -> list[int]:
    text = f"\n{file.read_text(encoding='ascii')}"
    return [int(text.partition(f"\n{name}:")[2].split()[0]) for name in names]


def program_of(folder: Path) -> str:
    """Return the module that a process runs, or else the program."""
    words = (folder / "cmdline").read_text(encoding="utf-8").rstrip("\0").split("\0")
    after = words.index("-m") + 1 if "-m" in words[:-1] else 1
    return Path(words[min(after, len(words) - 1)]).name


@dataclass
class Watched:
    gateway: Gateway
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def take_sample(self) -> Sample:
        mb: dict[str, float] = {}
        files = threads = 0
        for folder in process_tree(self.gateway.process.pid):
            own, some = fields_of(folder / "status", "VmRSS", "Threads")
            name = program_of(folder)
            mb[name] = mb.get(name, 0) + own / 1024
            threads += some
            files += len([*(folder / "fd").iterdir()])
        return Sample((time.monotonic() - self.began) / 60, mb, files, threads)

    def requests(self) -> int:
        """Return the number of running requests, from /metrics."""
        metrics = self.gateway.request("GET", "/metrics").body.decode()
        found = metrics.partition("\nbridge_in_flight_requests")[2]
        return int(float(found.partition("\n")[0].split()[-1]))

    async def watch(self) -> None:
        while True:
            self.samples.append(self.take_sample())
            await asyncio.sleep(1)

    @property
    def is_long(self) -> bool:
        return self.samples[-1].minutes >= LONG_MINUTES

    @property
    def judged(self) -> list[tuple[float, float]]:
        """Return (minute, MB) of the samples after the one-time allocations."""
        begin = WARM_MINUTES if self.is_long else self.samples[-1].minutes / 3
        return [(each.minutes, each.memory) for each in self.samples if each.minutes >= begin]

    def slope(self) -> float:
        """Return MB per ten minutes, by least squares over ``judged``."""
        judged = self.judged
        middle = sum(at for at, _ in judged) / len(judged)
        level = sum(mb for _, mb in judged) / len(judged)
        above = sum((at - middle) * (mb - level) for at, mb in judged)
        return 10 * above / (sum((at - middle) ** 2 for at, _ in judged) or 1)

    def rise(self) -> float:
        """Return the MB between the medians of the start and the end of ``judged``."""
        some = max(1, len(self.judged) // 8)
        return median(mb for _, mb in self.judged[-some:]) - median(
            mb for _, mb in self.judged[:some]
        )

    def is_flat(self) -> bool:
        return self.slope() < FLAT_SLOPE if self.is_long else self.rise() <= FLAT_MB

    def chart(self, width: int = 60) -> str:
        """Draw memory over time from its minimum to its maximum."""
        levels = [each.memory for each in self.samples]
        least, most = min(levels), max(levels)
        step = max(1, len(levels) // width)
        heights = [max(levels[at : at + step]) for at in range(0, len(levels), step)]
        scale = (len(BARS) - 1) / (most - least or 1)
        line = "".join(BARS[round((height - least) * scale)] for height in heights)
        return f"{line}  {least:.0f} to {most:.0f} MB"

    def by_minute(self) -> dict[str, str]:
        """Return table rows with the last sample of each minute."""
        last = {int(each.minutes): each for each in self.samples}
        last_samples = list(last.values())[:20]
        rows = {
            "minute": [minute + 1 for minute in list(last)[:20]],
            "memory, MB": [each.memory for each in last_samples],
            **{
                f"  {name}": [each.mb.get(name, 0) for each in last_samples]
                for name in last_samples[-1].mb
            },
            "files and sockets": [each.files for each in last_samples],
            "threads": [each.threads for each in last_samples],
        }
        return {name: "".join(f"{round(one, 1):7}" for one in row) for name, row in rows.items()}


async def run(
    gateway: Gateway, upstream: BaseProcess, options: argparse.Namespace
) -> dict[str, Any]:
    busy, idle = Tally(), Tally()
    await client(gateway.port, f"10/1{ONCE}", time.monotonic() + 1, Tally())  # one-time allocations
    await asyncio.sleep(options.settle_s)
    watched = Watched(gateway)
    before = watched.take_sample()
    until = time.monotonic() + options.minutes * 60
    watching = asyncio.create_task(watched.watch())
    showing = asyncio.create_task(show(watched, busy, idle, options.minutes * 60))
    asyncio.get_running_loop().call_later(options.minutes * 60, watching.cancel)
    quick, slow = f"{options.rate}/{options.stream_s}", f"{IDLE_RATE}/{options.idle_s}"
    async with asyncio.TaskGroup() as group:
        for _ in range(options.streams):
            group.create_task(client(gateway.port, quick, until, busy))
            await asyncio.sleep(1 / options.arrivals)
        for _ in range(options.idle):
            group.create_task(client(gateway.port, slow, until, idle))
            await asyncio.sleep(1 / options.arrivals)
        there = time.monotonic()
    showing.cancel()
    upstream.terminate()  # also closes the idle connections to it
    await asyncio.sleep(options.settle_s)
    after, left = watched.take_sample(), await asyncio.to_thread(watched.requests)
    remained = after.files > before.files or after.threads > before.threads or left > 0
    since = f"minute {WARM_MINUTES:.0f} on" if watched.is_long else "the last two thirds"
    early = [took for at, took in busy.firsts.items() if at < there]
    later = [took for at, took in busy.firsts.items() if at >= there]
    most = max(each.memory for each in watched.samples)
    return {
        "streams": f"{busy.streams} at {options.rate}/s, {idle.streams} idle",
        "events": busy.events + idle.events,
        "faults": len(busy.faults) + len(idle.faults),
        "first faults": (busy.faults + idle.faults)[:3],
        "delay of an event, ms": spread(busy.delays),
        "first event while clients start, ms": spread(early),
        "first event with all clients, ms": spread(later),
        "first event of an idle stream, ms": spread([*idle.firsts.values()]),
        "memory, MB, at the start and at most": f"{before.memory:.0f}, {most:.0f}",
        "over time": watched.chart(),
        **watched.by_minute(),
        f"its slope from {since}": f"{watched.slope():.2f} MB in 10 minutes",
        "its rise there, MB": f"{watched.rise():.1f}",
        "files and sockets, before and after": f"{before.files}, {after.files}",
        "threads, before and after": f"{before.threads}, {after.threads}",
        "requests still running": left,
        "verdict": verdict(busy, idle, watched, remained=remained),
    }


def verdict(busy: Tally, idle: Tally, watched: Watched, *, remained: bool) -> str:
    faults = len(busy.faults) + len(idle.faults)
    wrong = [f"{faults} faults"] if faults else []
    if not watched.is_flat():
        wrong.append("memory is not flat")
    if remained:
        wrong.append("files, threads or requests remained")
    return ", ".join(wrong) or WELL


WELL = "0 faults, memory is flat"


async def show(watched: Watched, busy: Tally, idle: Tally, lasting_s: float) -> None:
    """Show the progress while stderr is a terminal."""
    began = time.monotonic()
    while sys.stderr.isatty():
        done = min(1.0, (time.monotonic() - began) / lasting_s)
        bar = "█" * round(30 * done)
        events, faults = busy.events + idle.events, len(busy.faults) + len(idle.faults)
        memory = watched.take_sample().memory
        progress = f"{events:,} events of completed streams, {faults} faults, {memory:.0f} MB"
        print(f"\r{bar:░<30} {done:4.0%}  {progress} ", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10, help="events per second of each stream")
    parser.add_argument("--stream-s", type=float, default=20, help="duration of one of them")
    parser.add_argument("--idle", type=int, default=0, help="number of additional idle streams")
    parser.add_argument("--idle-s", type=float, default=120, help="duration of one of those")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--arrivals", type=float, default=50, help="new clients per second")
    parser.add_argument("--settle-s", type=float, default=3, help="pause before files are counted")
    options = parser.parse_args()
    with counting_gateway(options.streams + options.idle + 100) as (gateway, upstream):
        report = asyncio.run(run(gateway, upstream, options))
    print(file=sys.stderr)
    for name, value in report.items():
        print(f"{name:40} {value}")
    return 0 if report["verdict"] == WELL else 1


if __name__ == "__main__":
    sys.exit(main())
