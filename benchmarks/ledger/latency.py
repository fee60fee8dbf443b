"""Measure what the ledger adds to the time to first byte: the wait for a durable open record.

As in the gateway, a request is translated while the disk takes its record. Every other request is
translated without a ledger, at the same pace and in the same state of the caches: "added" is the
difference of the two. The last row is the wait alone at the load of scenario S1 of the gateway's
benchmark: 16 clients, each of which sends its next request when the last one ended.

python -m benchmarks.ledger.latency [--rates 10 50 200] [--seconds 5]
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

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.ledger import world

CLIENTS = 16
WORK_NS = 420_000  # of the event loop's CPU for one request, as S1 has it
SMALL = json.dumps(
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 380}]}
).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    directory = world.set_up()
    bodies = [json.dumps(request).encode() for request, _ in world.session(100)]
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
    waits = loaded(directory / "loaded", options.seconds)
    row(table, "1 KB", f"{CLIENTS} clients", "wait for the record", waits)
    Console().print(table)


def cuts(waits: list[float]) -> list[float]:
    """Return the median, the 95th and the 99th percentile."""
    found = statistics.quantiles(waits, n=100)
    return [found[49], found[94], found[98]]


def row(table: Table, name: str, rate: str, what: str, waits: list[float]) -> None:
    table.add_row(name, rate, what, *(f"{ms:.2f}" for ms in cuts(waits)), str(len(waits)))


def floor(directory: Path) -> list[float]:
    """Return the milliseconds of one fdatasync of 4 KB: the lower limit of a durable write.

    The writes replace earlier ones; a journal appends.
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
    """Return the work of the gateway between the open record and the upstream call."""
    from proxy.gateway.snapshot.dialects import DIALECTS
    from translator.anthropic.request_validation import parse_messages_request
    from translator.capabilities import PROFILES
    from translator.dialect import TranslationTarget

    request = parse_messages_request(json.loads(body))
    target = TranslationTarget(upstream="u", model="m", profile=PROFILES["openai"])
    encode = msgspec.json.Encoder().encode
    return lambda: encode(DIALECTS["responses"].build_request(request, target).body)


async def run(
    directory: Any, bodies: list[bytes], rate: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Return the milliseconds until the upstream call, with and without the ledger."""
    from proxy.ledger.journal.records import CloseRecord, OpenRecord
    from proxy.ledger.recorder import Recorder

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
        future = await recorder.begin_open(record)
        work[which]()
        await future.wait()
        waits.append((time.perf_counter() - began) * 1000)
        recorder.begin_close(
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


def loaded(directory: Path, seconds: float) -> list[float]:
    """Return the milliseconds that requests wait for their record while the event loop is busy."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(closed_loop(directory, seconds))


async def closed_loop(directory: Path, seconds: float) -> list[float]:
    from proxy.ledger.journal import locks
    from proxy.ledger.journal.journal import DurabilityFuture, Journal
    from proxy.ledger.journal.records import CloseRecord, OpenRecord

    with locks.take(directory) as lock:
        journal = Journal(lock)
        journal.start()
        waits: list[float] = []
        end = time.monotonic() + seconds
        body = os.urandom(500).hex().encode()
        reads = [(1.0, os.urandom(4_000).hex().encode())]

        async def client(name: int) -> None:
            number = 0
            while time.monotonic() < end:
                number += 1
                pk = f"req_{name}_{number}"
                began = time.perf_counter()
                future = DurabilityFuture(lambda: None)
                journal.append(
                    OpenRecord(
                        id=pk,
                        created=time.time(),
                        worker="w",
                        team="t",
                        key_id=1,
                        key_name="k",
                        body=body,
                    ),
                    future,
                )
                await future.wait()
                waits.append((time.perf_counter() - began) * 1000)
                busy_until = time.thread_time_ns() + WORK_NS
                while time.thread_time_ns() < busy_until:
                    pass
                await asyncio.sleep(0)
                journal.append(
                    CloseRecord(
                        id=pk, finished=time.time(), outcome="completed", status=200, reads=reads
                    )
                )

        await asyncio.gather(*(client(name) for name in range(CLIENTS)))
        await asyncio.to_thread(journal.stop)
    return waits


if __name__ == "__main__":
    main()
