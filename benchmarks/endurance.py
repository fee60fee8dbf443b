"""Many streams for a long time: is every event there once, in time, and is memory flat?

    python -m benchmarks.endurance --streams 200 --rate 10 --idle 2000 --minutes 10

A missing, a doubled or a late event is seen (``numbered.py``). Idle-ish streams say something every
ten seconds, for two minutes: what an answer said so far is in memory, so that one of ten minutes
takes ever more of it.

Clients come one after the other, ``--arrivals`` a second: a team's do not all begin in one moment.
Memory is judged from minute 5 on, when SQLite's caches are full, by the slope of a straight line
through it; a run under eight minutes by what it rises in its last two thirds. In the end the files,
threads and running requests (each is one task) must be those of the beginning. All processes of the
gateway count as one. Exit code 1: an event was missing or doubled, a stream broke off, memory was
not flat, or something stayed.
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

from tests.fakes.gateway import Gateway

from .numbered import ONCE, Tally, client, counting_gateway, spread

IDLE_RATE = 0.1  # events a second
BARS = "▁▂▃▄▅▆▇█"
WARM_MINUTES = 5.0
LONG_MINUTES = 8.0
FLAT_SLOPE = 1.0  # MB in ten minutes: promises.md, G04
FLAT_MB = 5.0
"""What it may rise by between the beginning and the end of the last two thirds of a short run."""


# The process that is watched


class Seen(NamedTuple):
    """Of all processes together."""

    minutes: float
    mb: dict[str, float]  # by process; a page that several have counts in each
    files: int
    threads: int

    @property
    def memory(self) -> float:
        return sum(self.mb.values())


def family(pid: int) -> Iterator[Path]:
    """The folders in /proc of a process and of all that it started."""
    folder = Path("/proc", str(pid))
    yield folder
    for listed in folder.glob("task/*/children"):
        for child in listed.read_text(encoding="ascii").split():
            yield from family(int(child))


def told_in(file: Path, *names: str) -> list[int]:
    text = f"\n{file.read_text(encoding='ascii')}"
    return [int(text.partition(f"\n{name}:")[2].split()[0]) for name in names]


def ran_in(folder: Path) -> str:
    """The module, or else the program."""
    words = (folder / "cmdline").read_text(encoding="utf-8").rstrip("\0").split("\0")
    after = words.index("-m") + 1 if "-m" in words[:-1] else 1
    return Path(words[min(after, len(words) - 1)]).name


@dataclass
class Watched:
    gateway: Gateway
    seen: list[Seen] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def look(self) -> Seen:
        mb: dict[str, float] = {}
        files = threads = 0
        for folder in family(self.gateway.process.pid):
            own, some = told_in(folder / "status", "VmRSS", "Threads")
            name = ran_in(folder)
            mb[name] = mb.get(name, 0) + own / 1024
            threads += some
            files += len([*(folder / "fd").iterdir()])
        return Seen((time.monotonic() - self.began) / 60, mb, files, threads)

    def requests(self) -> int:
        """That run now."""
        metrics = self.gateway.ask("GET", "/metrics").body.decode()
        found = metrics.partition("\nbridge_in_flight_requests")[2]
        return int(float(found.partition("\n")[0].split()[-1]))

    async def watch(self) -> None:
        while True:
            self.seen.append(self.look())
            await asyncio.sleep(1)

    @property
    def is_long(self) -> bool:
        return self.seen[-1].minutes >= LONG_MINUTES

    @property
    def late(self) -> list[tuple[float, float]]:
        """Minutes and MB, of when all is there that is made but once."""
        begin = WARM_MINUTES if self.is_long else self.seen[-1].minutes / 3
        return [(each.minutes, each.memory) for each in self.seen if each.minutes >= begin]

    def slope(self) -> float:
        """MB in ten minutes, by least squares over ``late``."""
        late = self.late
        middle = sum(at for at, _ in late) / len(late)
        level = sum(mb for _, mb in late) / len(late)
        above = sum((at - middle) * (mb - level) for at, mb in late)
        return 10 * above / (sum((at - middle) ** 2 for at, _ in late) or 1)

    def rise(self) -> float:
        """MB between the beginning and the end of ``late``, each as a median."""
        some = max(1, len(self.late) // 8)
        return median(mb for _, mb in self.late[-some:]) - median(mb for _, mb in self.late[:some])

    def is_flat(self) -> bool:
        return self.slope() < FLAT_SLOPE if self.is_long else self.rise() <= FLAT_MB

    def drawn(self, width: int = 60) -> str:
        """The line of memory over time; its foot is the least, its top the most."""
        levels = [each.memory for each in self.seen]
        least, most = min(levels), max(levels)
        step = max(1, len(levels) // width)
        heights = [max(levels[at : at + step]) for at in range(0, len(levels), step)]
        scale = (len(BARS) - 1) / (most - least or 1)
        line = "".join(BARS[round((height - least) * scale)] for height in heights)
        return f"{line}  {least:.0f} to {most:.0f} MB"

    def by_minute(self) -> dict[str, str]:
        """Lines of a table: the last look of each minute."""
        last = {int(each.minutes): each for each in self.seen}
        looks = list(last.values())[:20]
        rows = {
            "minute": [minute + 1 for minute in list(last)[:20]],
            "memory, MB": [each.memory for each in looks],
            **{f"  {name}": [each.mb.get(name, 0) for each in looks] for name in looks[-1].mb},
            "files and sockets": [each.files for each in looks],
            "threads": [each.threads for each in looks],
        }
        return {name: "".join(f"{round(one, 1):7}" for one in row) for name, row in rows.items()}


async def run(gateway: Gateway, player: BaseProcess, options: argparse.Namespace) -> dict[str, Any]:
    busy, idle = Tally(), Tally()
    await client(gateway.port, f"10/1{ONCE}", time.monotonic() + 1, Tally())  # made but once
    await asyncio.sleep(options.settle_s)
    watched = Watched(gateway)
    before = watched.look()
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
    player.terminate()  # with it go the connections to it that idle
    await asyncio.sleep(options.settle_s)
    after, left = watched.look(), await asyncio.to_thread(watched.requests)
    stayed = after.files > before.files or after.threads > before.threads or left > 0
    since = f"minute {WARM_MINUTES:.0f} on" if watched.is_long else "the last two thirds"
    early = [took for at, took in busy.firsts.items() if at < there]
    later = [took for at, took in busy.firsts.items() if at >= there]
    most = max(each.memory for each in watched.seen)
    return {
        "streams": f"{busy.streams} at {options.rate}/s, {idle.streams} idle-ish",
        "events": busy.events + idle.events,
        "faults": len(busy.faults) + len(idle.faults),
        "the first of them": (busy.faults + idle.faults)[:3],
        "delay of an event, ms": spread(busy.delays),
        "first event while clients came, ms": spread(early),
        "first event when all were there, ms": spread(later),
        "first event of an idle-ish stream, ms": spread([*idle.firsts.values()]),
        "memory, MB, before and at most": f"{before.memory:.0f}, {most:.0f}",
        "over time": watched.drawn(),
        **watched.by_minute(),
        f"its slope from {since}": f"{watched.slope():.2f} MB in 10 minutes",
        "its rise there, MB": f"{watched.rise():.1f}",
        "files and sockets, before and after": f"{before.files}, {after.files}",
        "threads, before and after": f"{before.threads}, {after.threads}",
        "requests that still run": left,
        "verdict": verdict(busy, idle, watched, stayed=stayed),
    }


def verdict(busy: Tally, idle: Tally, watched: Watched, *, stayed: bool) -> str:
    faults = len(busy.faults) + len(idle.faults)
    wrong = [f"{faults} faults"] if faults else []
    if not watched.is_flat():
        wrong.append("memory is not flat")
    if stayed:
        wrong.append("files, threads or requests stayed")
    return ", ".join(wrong) or WELL


WELL = "0 faults, memory is flat"


async def show(watched: Watched, busy: Tally, idle: Tally, lasting_s: float) -> None:
    """Where we are, for whoever waits."""
    began = time.monotonic()
    while sys.stderr.isatty():
        done = min(1.0, (time.monotonic() - began) / lasting_s)
        bar = "█" * round(30 * done)
        events, faults = busy.events + idle.events, len(busy.faults) + len(idle.faults)
        memory = watched.look().memory
        told = f"{events:,} events of streams that ended, {faults} faults, {memory:.0f} MB"
        print(f"\r{bar:░<30} {done:4.0%}  {told} ", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10, help="events a second in each")
    parser.add_argument("--stream-s", type=float, default=20, help="how long one of them lasts")
    parser.add_argument("--idle", type=int, default=0, help="streams that hardly speak, beside")
    parser.add_argument("--idle-s", type=float, default=120, help="how long one of those lasts")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--arrivals", type=float, default=50, help="clients that come in a second")
    parser.add_argument("--settle-s", type=float, default=3, help="rest before files are counted")
    options = parser.parse_args()
    with counting_gateway(options.streams + options.idle + 100) as (gateway, player):
        told = asyncio.run(run(gateway, player, options))
    print(file=sys.stderr)
    for name, value in told.items():
        print(f"{name:40} {value}")
    return 0 if told["verdict"] == WELL else 1


if __name__ == "__main__":
    sys.exit(main())
