"""What the ledger adds to the time to first byte: the wait for a durable open record.

As in the gateway, a request is translated while the disk takes its record. Every other request is
translated without a ledger, at the same pace and in the same state of the caches: "added" is the
difference of the two.

python benchmarks/ledger_latency.py [--rates 10 50 200] [--seconds 5]
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ledger_world
import msgspec
from rich.console import Console
from rich.table import Table

SMALL = json.dumps(
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 380}]}
).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    directory = ledger_world.set_up()
    bodies = [json.dumps(request).encode() for request, _ in ledger_world.session(100)]
    table = Table("bodies", "requests/s", "", "median ms", "p95 ms", "p99 ms", "requests")
    row(table, "floor: one fdatasync", "", "wait", floor(directory))
    for name, some in (
        ("2 KB", [SMALL]),
        (f"{len(bodies[0]) // 1000}-{len(bodies[-1]) // 1000} KB", bodies),
    ):
        for rate in options.rates:
            folder = directory / f"{name[:2]}-{rate}"
            waits, alone = asyncio.run(run(folder, some, rate, options.seconds))
            row(table, name, str(rate), "with the ledger", waits)
            row(table, "", "", "without", alone)
            added = (a - b for a, b in zip(cuts(waits), cuts(alone), strict=True))
            table.add_row("", "", "added", *(f"{ms:.2f}" for ms in added), "")
    Console().print(table)


def cuts(waits: list[float]) -> list[float]:
    """The median, the 95th and the 99th percentile."""
    found = statistics.quantiles(waits, n=100)
    return [found[49], found[94], found[98]]


def row(table: Table, name: str, rate: str, what: str, waits: list[float]) -> None:
    table.add_row(name, rate, what, *(f"{ms:.2f}" for ms in cuts(waits)), str(len(waits)))


def floor(directory: Path) -> list[float]:
    """What the disk takes for 4 KB, on this machine, now: nothing durable can be quicker.

    They replace others, as the spool's do.
    """
    waits = []
    file = os.open(directory / "floor", os.O_RDWR | os.O_CREAT)
    os.write(file, bytes(4096 * 200))
    os.fsync(file)
    os.lseek(file, 0, os.SEEK_SET)
    for _ in range(200):
        began = time.perf_counter()
        os.write(file, bytes(4096))
        os.fdatasync(file)
        waits.append((time.perf_counter() - began) * 1000)
        time.sleep(0.01)
    os.close(file)
    return waits


def translator(body: bytes) -> Callable[[], object]:
    """What the gateway does between the record and the dial; the parsing was before."""
    from proxy.gateway.dialects import DIALECTS
    from translator.anthropic.request import parse_messages_request
    from translator.dialect import Target
    from translator.profiles import PROFILES

    request = parse_messages_request(json.loads(body))
    target = Target(upstream="u", model="m", profile=PROFILES["openai"])
    encode = msgspec.json.Encoder().encode
    return lambda: encode(DIALECTS["responses"].build_request(request, target).body)


async def run(
    directory: Any, bodies: list[bytes], rate: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Milliseconds until the dial, with the ledger and without it."""
    from proxy.record.recorder import Recorder
    from proxy.record.records import CloseRecord, OpenRecord

    recorder = Recorder(directory)
    recorder.start()
    waits: list[float] = []
    alone: list[float] = []
    work = [translator(body) for body in bodies]

    async def one(number: int) -> None:
        which = number // 2 % len(bodies)
        record = OpenRecord(
            id=f"req_{rate}_{len(bodies)}_{number}", created=time.time(), worker="w", team="t",
            key_id=1, key_name="k", body=bodies[which],
        )  # fmt: skip
        began = time.perf_counter()
        if number % 2:
            work[which]()
            alone.append((time.perf_counter() - began) * 1000)
            return
        landing = await recorder.enter(record)
        work[which]()
        await landing.landed()
        waits.append((time.perf_counter() - began) * 1000)
        recorder.settle(
            CloseRecord(id=record.id, finished=time.time(), outcome="completed", status=200)
        )

    tasks = []
    began = time.perf_counter()
    for number in range(int(rate * seconds) * 2):
        await asyncio.sleep(max(0.0, began + number / rate / 2 - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    await asyncio.to_thread(recorder.stop)
    return waits, alone


if __name__ == "__main__":
    main()
