"""Many streams for a long time: is every event there once, in time, and is memory flat?

    python -m benchmarks.endurance --streams 200 --rate 10 --idle 2000 --minutes 10

Each event carries its number and the moment at which the upstream said it, so that a missing, a
doubled or a late one is seen. Idle-ish streams say something every ten seconds. Delays include
those of the driver itself, which shares the machine.

Clients come one after the other, ``--arrivals`` a second: a team's do not all begin in one moment.
Memory is judged by its last two thirds, when all are there. Exit code 1: an event was missing,
doubled or late, a stream broke off, or memory was not flat.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bridge_project.env import VARIABLES
from tests.fakes.gateway import KEY, Gateway, toml_for
from tests.faults.sockets import open_files

IDLE_RATE = 0.1  # events a second
ROUTE = '\n[[routes]]\nmodel = "*"\ntargets = [{ upstream = "chat" }]\n'
MARK = b'"text":"'
BARS = "▁▂▃▄▅▆▇█"
FLAT_MB = 5.0
"""What memory may rise by between the beginning and the end of the last two thirds of a run."""


# The upstream, in a process of its own


def upstream(port: Any) -> None:
    asyncio.run(_listen(port))


async def _listen(port: Any) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=4096)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """``model`` is ``<events a second>/<seconds>``: so many numbered events, then the end."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            model = json.loads(await reader.readexactly(length))["model"]
            rate, seconds = map(float, model.split("/"))
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            due = time.monotonic()
            for number in range(max(1, int(rate * seconds))):
                _say(writer, {"content": f"{number}@{time.monotonic():.6f} "})
                await writer.drain()
                due += 1 / rate
                await asyncio.sleep(due - time.monotonic())
            _say(writer, {}, "stop")
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _say(writer: asyncio.StreamWriter, delta: dict[str, str], finish: str | None = None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    event = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    writer.write(_chunk(b"data: %b\n\n" % json.dumps(event).encode()))


def _chunk(raw: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(raw), raw)


# The clients


@dataclass
class Tally:
    events: int = 0
    streams: int = 0
    faults: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)  # seconds; a sample of one in ten
    firsts: list[float] = field(default_factory=list)  # from the request to the first event


async def client(port: int, model: str, until: float, tally: Tally) -> None:
    """One stream after the other."""
    while time.monotonic() < until:
        try:
            await _stream(port, model, tally)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.faults.append(repr(error))
        tally.streams += 1


async def _stream(port: int, model: str, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    said = [{"role": "user", "content": "Count."}]
    body = json.dumps({"model": model, "max_tokens": 99, "stream": True, "messages": said})
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nconnection: close\r\nx-api-key: {KEY}\r\n"
    began = time.monotonic()
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    due, ended, status = 0, False, await reader.readline()
    async for line in reader:
        ended = ended or b'"message_stop"' in line
        if MARK not in line or b"text_delta" not in line:
            continue
        number, _, at = line.partition(MARK)[2].partition(b'"')[0].partition(b"@")
        now = time.monotonic()
        if int(number) != due:
            tally.faults.append(f"event {int(number)} where {due} was due")
        if due == 0:
            tally.firsts.append(now - began)
        elif due % 10 == 0:
            tally.delays.append(now - float(at))
        due += 1
    tally.events += due
    rate, seconds = map(float, model.split("/"))
    if not ended or due != max(1, int(rate * seconds)):
        tally.faults.append(f"{status!r}: {due} events, ended: {ended}")
    writer.close()


# The process that is watched


@dataclass
class Watched:
    pid: int
    seen: list[tuple[float, float]] = field(default_factory=list)  # minutes, MB

    def memory(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def files(self) -> int:
        return len(open_files(self.pid))

    async def watch(self) -> None:
        began = time.monotonic()
        while True:
            self.seen.append(((time.monotonic() - began) / 60, self.memory()))
            await asyncio.sleep(1)

    @property
    def late(self) -> list[tuple[float, float]]:
        """Its last two thirds."""
        return self.seen[len(self.seen) // 3 :]

    def slope(self) -> float:
        """MB in ten minutes, by least squares over the last two thirds."""
        middle = sum(at for at, _ in self.late) / len(self.late)
        level = sum(mb for _, mb in self.late) / len(self.late)
        above = sum((at - middle) * (mb - level) for at, mb in self.late)
        return 10 * above / (sum((at - middle) ** 2 for at, _ in self.late) or 1)

    def rise(self) -> float:
        """MB between the beginning and the end of the last two thirds, each as a median."""
        some = max(1, len(self.late) // 8)
        return median(mb for _, mb in self.late[-some:]) - median(mb for _, mb in self.late[:some])

    def drawn(self, width: int = 60) -> str:
        """The line of memory over time; its foot is the least, its top the most."""
        levels = [mb for _, mb in self.seen]
        least, most = min(levels), max(levels)
        step = max(1, len(levels) // width)
        heights = [max(levels[at : at + step]) for at in range(0, len(levels), step)]
        scale = (len(BARS) - 1) / (most - least or 1)
        line = "".join(BARS[round((height - least) * scale)] for height in heights)
        return f"{line}  {least:.0f} to {most:.0f} MB"


async def run(gateway: Gateway, player: Any, options: argparse.Namespace) -> dict[str, Any]:
    watched, busy, idle = Watched(gateway.process.pid), Tally(), Tally()
    await client(gateway.port, "10/1", time.monotonic() + 1, Tally())  # what is made but once
    files, memory = watched.files(), watched.memory()
    until = time.monotonic() + options.minutes * 60
    rest = max(20.0, options.minutes * 60 - 10)
    watching = asyncio.create_task(watched.watch())
    showing = asyncio.create_task(show(watched, busy, idle, options.minutes * 60))
    quick, slow = f"{options.rate}/{options.stream_s}", f"{IDLE_RATE}/{rest}"
    async with asyncio.TaskGroup() as group:
        for _ in range(options.streams):
            group.create_task(client(gateway.port, quick, until, busy))
            await asyncio.sleep(1 / options.arrivals)
        for _ in range(options.idle):
            group.create_task(client(gateway.port, slow, time.monotonic() + 1, idle))
            await asyncio.sleep(1 / options.arrivals)
    watching.cancel()
    showing.cancel()
    player.terminate()  # with it go the connections to it that idle
    await asyncio.sleep(options.settle_s)
    return {
        "streams": f"{busy.streams} at {options.rate}/s, {idle.streams} idle-ish",
        "events": busy.events + idle.events,
        "faults": len(busy.faults) + len(idle.faults),
        "the first of them": (busy.faults + idle.faults)[:3],
        "delay of an event, ms": _spread(busy.delays),
        "first event, ms": _spread(busy.firsts),
        "first event of an idle-ish stream, ms": _spread(idle.firsts),
        "memory, MB": f"{memory:.0f} before, {max(mb for _, mb in watched.seen):.0f} at most",
        "over time": watched.drawn(),
        "its slope, MB in 10 minutes": f"{watched.slope():.1f} over the last two thirds",
        "its rise there, MB": f"{watched.rise():.1f}, {FLAT_MB:.0f} are flat",
        "files and sockets": f"{files} before, {watched.files()} after",
        "verdict": verdict(busy, idle, watched),
    }


def verdict(busy: Tally, idle: Tally, watched: Watched) -> str:
    faults = len(busy.faults) + len(idle.faults)
    wrong = [f"{faults} faults"] if faults else []
    if watched.rise() > FLAT_MB:
        wrong.append("memory is not flat")
    return ", ".join(wrong) or WELL


WELL = "0 faults, memory is flat"


async def show(watched: Watched, busy: Tally, idle: Tally, lasting_s: float) -> None:
    """Where we are, for whoever waits."""
    began = time.monotonic()
    while sys.stderr.isatty():
        done = min(1.0, (time.monotonic() - began) / lasting_s)
        bar = "█" * round(30 * done)
        events, faults = busy.events + idle.events, len(busy.faults) + len(idle.faults)
        told = (
            f"{events:,} events of streams that ended, {faults} faults, {watched.memory():.0f} MB"
        )
        print(f"\r{bar:░<30} {done:4.0%}  {told} ", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def _spread(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return "none"
    cuts = quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1000:.1f}, p99 {cuts[98] * 1000:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10, help="events a second in each")
    parser.add_argument("--stream-s", type=float, default=20, help="how long one of them lasts")
    parser.add_argument("--idle", type=int, default=0, help="streams that hardly speak, beside")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--arrivals", type=float, default=50, help="clients that come in a second")
    parser.add_argument("--settle-s", type=float, default=3, help="rest before files are counted")
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    player = multiprocessing.get_context("spawn").Process(
        target=upstream, args=(there,), daemon=True
    )
    player.start()
    chat = {"dialect": "chat", "base_url": f"http://127.0.0.1:{here.recv()}/v1"}
    with tempfile.TemporaryDirectory() as folder:
        config = toml_for({"chat": chat}, ROUTE)
        more = {
            "BRIDGE_MAX_STREAMS": str(options.streams + options.idle + 100),
            "BRIDGE_SHED_LAG_S": VARIABLES["BRIDGE_SHED_LAG_S"].default,  # which tests have put off
        }
        with Gateway(Path(folder) / "gateway", config=config, environment=more) as gateway:
            told = asyncio.run(run(gateway, player, options))
    print(file=sys.stderr)
    for name, value in told.items():
        print(f"{name:40} {value}")
    return 0 if told["verdict"] == WELL else 1


if __name__ == "__main__":
    sys.exit(main())
