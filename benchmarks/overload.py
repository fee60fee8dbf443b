"""Run three times as many clients as the gateway has room for; check that it rejects the rest.

    python -m benchmarks.overload --streams 200 --rate 10 --minutes 5

The gateway has room for ``--streams``. First as many clients run one stream after the other; then
others join, until there are ``--times`` as many. A rejected client retries after ``--pause``, as
SDKs do. At the end the others disconnect, also in the middle of a response.

An admitted client receives every event once, at most twice as late as in `benchmarks.endurance`;
a rejected client receives a 529 within 0.1 s; five seconds after the others disconnected no client
is rejected. Delays include those of the driver, which shares the machine, and count for the phase
in which the stream began. Exit code 1: one of these conditions failed.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable
from statistics import quantiles
from typing import Final

from tests.fakes.servers.gateway import Gateway

from .numbered import ONCE, Tally, client, counting_gateway, spread, stream

FIRST_S: Final = 2 * 0.1  # p99 of a first event: twice that of an endurance run
EVENT_S: Final = 2 * 0.05  # p99 of the delay of an event
REFUSED_S: Final = 0.1  # p99 until a rejection
NORMAL_S: Final = 5.0  # after the others disconnected


PHASES: Final = ("calm", "overload", "leaving", "afterwards")


class Results:
    """Count the results of the requests that began in each phase."""

    def __init__(self) -> None:
        self.phases = {name: Tally(refusals=[]) for name in PHASES}
        self.current = self.phases["calm"]

    def begin_phase(self, name: str) -> None:
        self.current = self.phases[name]

    def failed_conditions(self) -> list[str]:
        """Return the conditions that failed."""
        faults = sum(len(tally.faults) for tally in self.phases.values())
        failed = [f"{faults} faults"] if faults else []
        for name, tally in self.phases.items():
            limits = {
                "first events": (tally.firsts.values(), FIRST_S),
                "events": (tally.delays, EVENT_S),
                "refusals": (tally.refusals or (), REFUSED_S),
            }
            if name != "leaving":
                failed += [f"late {what} ({name})" for what, (all_, most) in limits.items()
                          if slowest(all_) > most]  # fmt: skip
        if not self.phases["overload"].refusals:
            failed.append("no client was rejected")
        if self.phases["afterwards"].refusals:
            failed.append("refusals afterwards")
        return failed


def slowest(seconds: Iterable[float]) -> float:
    """Return the 99th percentile."""
    some = [*seconds]
    return quantiles(some, n=100)[98] if len(some) > 1 else sum(some)


async def retrying_client(
    port: int, model: str, until: float, pause_s: float, results: Results
) -> None:
    """Run one stream after the other; pause after a rejection."""
    while time.monotonic() < until:
        tally = results.current
        try:
            served = await stream(port, model, tally)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.faults.append(repr(error))
            served = False
        tally.streams += served
        if not served:
            await asyncio.sleep(pause_s)


async def run(gateway: Gateway, options: argparse.Namespace) -> Results:
    results, lasting_s = Results(), options.minutes * 60
    await client(gateway.port, f"10/1{ONCE}", time.monotonic() + 1, Tally())  # one-time allocations
    model = f"{options.rate}/{options.stream_s}"
    until = time.monotonic() + 2 * options.calm_s + lasting_s + NORMAL_S

    async def start_clients(many: int) -> list[asyncio.Task[None]]:
        tasks = []
        for _ in range(many):
            tasks.append(
                asyncio.create_task(
                    retrying_client(gateway.port, model, until, options.pause, results)
                )
            )
            await asyncio.sleep(1 / options.arrivals)
        return tasks

    base_clients = await start_clients(options.streams)
    await asyncio.sleep(options.calm_s)
    results.begin_phase("overload")
    showing = asyncio.create_task(show(results, lasting_s))
    ends = time.monotonic() + lasting_s
    others = await start_clients(round(options.streams * (options.times - 1)))
    await asyncio.sleep(ends - time.monotonic())
    results.begin_phase("leaving")
    showing.cancel()
    for task in others:
        task.cancel()
    await asyncio.sleep(NORMAL_S)
    results.begin_phase("afterwards")
    await asyncio.gather(*base_clients)
    return results


async def show(results: Results, lasting_s: float) -> None:
    """Show the progress while stderr is a terminal."""
    began = time.monotonic()
    while sys.stderr.isatty():
        done = min(1.0, (time.monotonic() - began) / lasting_s)
        progress = (
            f"{results.current.streams:,} streams, {len(results.current.refusals or ()):,} refusals"
        )
        print(f"\r{'█' * round(30 * done):░<30} {done:4.0%}  {progress} ", end="", file=sys.stderr)
        await asyncio.sleep(1)


def table(results: Results) -> dict[str, str]:
    lines = {}
    for name, tally in results.phases.items():
        refusals = tally.refusals or []
        latest = f", at most {max(refusals) * 1000:.1f}" if refusals else ""
        counts = f"{tally.streams}, {tally.events}, {len(refusals)}"
        lines |= {
            f"{name}: streams, events, refusals": counts,
            f"{name}: first event, ms": spread([*tally.firsts.values()]),
            f"{name}: delay of an event, ms": spread(tally.delays),
            f"{name}: until a refusal, ms": spread(refusals) + latest,
        }
    faults = [fault for tally in results.phases.values() for fault in tally.faults]
    return {**lines, "faults, and the first of them": f"{len(faults)}, {faults[:3]}"}


def outcome(results: Results) -> str:
    """Summarize a run in which all conditions passed, in one line."""
    over = results.phases["overload"]
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
    parser.add_argument(
        "--streams", type=int, default=200, help="number of streams that the gateway has room for"
    )
    parser.add_argument(
        "--times", type=float, default=3, help="factor of clients in the overload phase"
    )
    parser.add_argument("--rate", type=float, default=10, help="events per second of each stream")
    parser.add_argument("--stream-s", type=float, default=20, help="duration of one of them")
    parser.add_argument("--minutes", type=float, default=5, help="duration of the overload")
    parser.add_argument(
        "--calm-s", type=float, default=30, help="duration of the phases before and after it"
    )
    parser.add_argument("--arrivals", type=float, default=50, help="new clients per second")
    parser.add_argument(
        "--pause", type=float, default=1, help="seconds between a rejection and the retry"
    )
    options = parser.parse_args()
    with counting_gateway(options.streams) as (gateway, _):
        results = asyncio.run(run(gateway, options))
    print(file=sys.stderr)
    for name, value in table(results).items():
        print(f"{name:40} {value}")
    failed = results.failed_conditions()
    print(f"{'verdict':40} {', '.join(failed) or outcome(results)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
