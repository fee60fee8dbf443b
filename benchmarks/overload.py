"""Three times as many clients as there is room for: is overload refused, and not suffered?

    python -m benchmarks.overload --streams 200 --rate 10 --minutes 5

The gateway has room for ``--streams``. First so many clients take one stream after the other; then
others come, until there are ``--times`` as many. Who is refused asks again after ``--pause``, as
SDKs do. When the time is over the others leave, also in the middle of what they hear.

promises.md, G03: who is admitted hears every event once, and waits twice as long as G01 allows at
most; who is not hears a 529 within 0.1 s; five seconds after the others left nobody is refused any
more. Delays include those of the driver, which shares the machine, and are of the streams that
began in a phase. Exit code 1: one of these is not kept.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable
from statistics import quantiles
from typing import Final

from tests.fakes.gateway import Gateway

from .numbered import ONCE, Tally, client, counting_gateway, spread, stream

FIRST_S: Final = 2 * 0.1  # p99 of a first event: twice that of G01
EVENT_S: Final = 2 * 0.05  # p99 of the delay of an event
REFUSED_S: Final = 0.1  # p99 until a refusal
NORMAL_S: Final = 5.0  # after the others left


PHASES: Final = ("calm", "overload", "leaving", "afterwards")


class Day:
    """What became of the requests that began in each phase."""

    def __init__(self) -> None:
        self.phases = {name: Tally(refusals=[]) for name in PHASES}
        self.now = self.phases["calm"]

    def begins(self, name: str) -> None:
        self.now = self.phases[name]

    def wrong(self) -> list[str]:
        """What was not kept."""
        faults = sum(len(tally.faults) for tally in self.phases.values())
        wrong = [f"{faults} faults"] if faults else []
        for name, tally in self.phases.items():
            kept = {
                "first events": (tally.firsts.values(), FIRST_S),
                "events": (tally.delays, EVENT_S),
                "refusals": (tally.refusals or (), REFUSED_S),
            }
            if name != "leaving":
                wrong += [f"late {what} ({name})" for what, (all_, most) in kept.items()
                          if slowest(all_) > most]  # fmt: skip
        if not self.phases["overload"].refusals:
            wrong.append("nobody was refused")
        if self.phases["afterwards"].refusals:
            wrong.append("refusals afterwards")
        return wrong


def slowest(seconds: Iterable[float]) -> float:
    """The 99th percentile."""
    some = [*seconds]
    return quantiles(some, n=100)[98] if len(some) > 1 else sum(some)


async def ask(port: int, model: str, until: float, pause_s: float, day: Day) -> None:
    """One stream after the other; a rest after a refusal."""
    while time.monotonic() < until:
        tally = day.now
        try:
            served = await stream(port, model, tally)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.faults.append(repr(error))
            served = False
        tally.streams += served
        if not served:
            await asyncio.sleep(pause_s)


async def run(gateway: Gateway, options: argparse.Namespace) -> Day:
    day, lasting_s = Day(), options.minutes * 60
    await client(gateway.port, f"10/1{ONCE}", time.monotonic() + 1, Tally())  # made but once
    model = f"{options.rate}/{options.stream_s}"
    until = time.monotonic() + 2 * options.calm_s + lasting_s + NORMAL_S

    async def come(many: int) -> list[asyncio.Task[None]]:
        tasks = []
        for _ in range(many):
            tasks.append(asyncio.create_task(ask(gateway.port, model, until, options.pause, day)))
            await asyncio.sleep(1 / options.arrivals)
        return tasks

    staying = await come(options.streams)
    await asyncio.sleep(options.calm_s)
    day.begins("overload")
    showing = asyncio.create_task(show(day, lasting_s))
    ends = time.monotonic() + lasting_s
    others = await come(round(options.streams * (options.times - 1)))
    await asyncio.sleep(ends - time.monotonic())
    day.begins("leaving")
    showing.cancel()
    for task in others:
        task.cancel()
    await asyncio.sleep(NORMAL_S)
    day.begins("afterwards")
    await asyncio.gather(*staying)
    return day


async def show(day: Day, lasting_s: float) -> None:
    """Where we are, for whoever waits."""
    began = time.monotonic()
    while sys.stderr.isatty():
        done = min(1.0, (time.monotonic() - began) / lasting_s)
        told = f"{day.now.streams:,} streams, {len(day.now.refusals or ()):,} refusals"
        print(f"\r{'█' * round(30 * done):░<30} {done:4.0%}  {told} ", end="", file=sys.stderr)
        await asyncio.sleep(1)


def table(day: Day) -> dict[str, str]:
    lines = {}
    for name, tally in day.phases.items():
        refusals = tally.refusals or []
        latest = f", at most {max(refusals) * 1000:.1f}" if refusals else ""
        counts = f"{tally.streams}, {tally.events}, {len(refusals)}"
        lines |= {
            f"{name}: streams, events, refusals": counts,
            f"{name}: first event, ms": spread([*tally.firsts.values()]),
            f"{name}: delay of an event, ms": spread(tally.delays),
            f"{name}: until a refusal, ms": spread(refusals) + latest,
        }
    faults = [fault for tally in day.phases.values() for fault in tally.faults]
    return {**lines, "faults, and the first of them": f"{len(faults)}, {faults[:3]}"}


def outcome(day: Day) -> str:
    """Of a day on which all was kept, in one line."""
    over = day.phases["overload"]
    refusals = over.refusals or []
    firsts, delays, until = (
        slowest(some) * 1000 for some in (over.firsts.values(), over.delays, refusals)
    )
    return (
        f"{over.streams} streams and {len(refusals)} refusals, 0 faults; p99 of a first event "
        f"{firsts:.0f} ms, of an event's delay {delays:.0f}, until a refusal {until:.0f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200, help="that there is room for")
    parser.add_argument("--times", type=float, default=3, help="as many clients come")
    parser.add_argument("--rate", type=float, default=10, help="events a second in each")
    parser.add_argument("--stream-s", type=float, default=20, help="how long one of them lasts")
    parser.add_argument("--minutes", type=float, default=5, help="of overload")
    parser.add_argument("--calm-s", type=float, default=30, help="before it, and afterwards")
    parser.add_argument("--arrivals", type=float, default=50, help="clients that come in a second")
    parser.add_argument("--pause", type=float, default=1, help="seconds, of who was refused")
    options = parser.parse_args()
    with counting_gateway(options.streams) as (gateway, _):
        day = asyncio.run(run(gateway, options))
    print(file=sys.stderr)
    for name, value in table(day).items():
        print(f"{name:40} {value}")
    wrong = day.wrong()
    print(f"{'verdict':40} {', '.join(wrong) or outcome(day)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
