"""Run a load client: fixed concurrency, raw HTTP/1.1 on uvloop, every response checked for its end.

    load --url http://127.0.0.1:4000 --model mock-n200-b5-g0-text --stream -c 16 -t 8 --pid 123
    load … --model mock-n100-b16-g20-text --stream -c 1000 -t 6 --ramp 2     (paced streams)
    load … --check                                           (one answer, shown and validated)

Prints one JSON object. Times are milliseconds. With paced models each delta carries the mock's
send time, so `delay` is the time a delta spent between the mock's write and this client's read
(same clock, same machine).
"""

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import sys
import threading
import time
from urllib.parse import urlsplit

import psutil
import uvloop

from benchmarks.gateway import payloads, validate

now = time.monotonic
STAMPS = re.compile(rb"@(\d{14})@")
RESPONSES_STAMPS = re.compile(rb'"delta":"@(\d{14})@')  # the .done events repeat the whole text
LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection:\s*close", re.IGNORECASE)
LAST = b"\r\n0\r\n\r\n"


class Run:
    def __init__(self, args):
        self.args = args
        url = urlsplit(args.url)
        self.host, self.port = url.hostname, url.port or 80
        body = payloads.body(args.api, args.size, args.model_prefix + args.model, args.stream)
        head = (
            f"POST {url.path.rstrip('/') + (args.path or payloads.PATHS[args.api])} HTTP/1.1\r\n"
            f"host: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
            "accept: application/json\r\n"
            f"user-agent: claude-cli/2.0.0 (external, cli)\r\ncontent-length: {len(body)}\r\n"
        )
        if args.api == "anthropic":
            head += f"x-api-key: {args.key}\r\nanthropic-version: 2023-06-01\r\n"
        if args.bearer or args.api != "anthropic":
            head += f"authorization: Bearer {args.bearer or args.key}\r\n"
        for extra in args.header:
            head += extra + "\r\n"
        self.request = head.encode() + b"\r\n" + body
        self.mark = {
            "anthropic": b"content_block_delta",
            "chat": b"chat.completion.chunk",
            "responses": b'"response.output_text.delta"',
        }[args.api]
        self.end_mark = {
            "anthropic": b"message_stop",
            "chat": b"[DONE]",
            "responses": b"response.completed",
        }[args.api]
        self.stamps, self.keep = (RESPONSES_STAMPS, 25) if args.api == "responses" else (STAMPS, 15)
        self.paced = "-g0" not in args.model and "-g" in args.model
        self.done = self.failed = self.deltas = self.bytes = self.unfinished = 0
        self.first, self.total, self.delays, self.gaps = [], [], [], []
        self.reasons, self.samples, self.open = {}, [], 0
        self.peak_open = 0
        self.stop_at = self.last_done = 0.0

    def fail(self, reason):
        self.failed += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


class Client(asyncio.Protocol):
    def __init__(self, run):
        self.run, self.transport, self.waiter = run, None, None

    def connection_made(self, transport):
        self.transport = transport

    def send(self):
        self.waiter = asyncio.get_running_loop().create_future()
        self.parts, self.head, self.length, self.got, self.tail = [], None, None, 0, b""
        self.chunked = self.close = False
        self.seen_first = False
        self.carry, self.previous = b"", None
        self.started = now()
        self.transport.write(self.run.request)
        return self.waiter

    def data_received(self, data):
        if self.waiter is None or self.waiter.done():
            return
        if self.head is None:
            self.carry += data
            split = self.carry.find(b"\r\n\r\n")
            if split < 0:
                return
            head, data, self.carry = self.carry[:split], self.carry[split + 4 :], b""
            self.head, self.status = head, int(head[9:12])
            self.chunked, self.close = (
                CHUNKED.search(head) is not None,
                CLOSE.search(head) is not None,
            )
            found = LENGTH.search(head)
            self.length = int(found[1]) if found else None
            self.tail = b"\r\n"
            if not data and self.length != 0:
                return
        self._received(data)

    def _received(self, data):
        self.parts.append(data)
        self.got += len(data)
        if not self.seen_first:
            joined = data if len(self.parts) == 1 else b"".join(self.parts)
            if self.run.mark in joined or not self.run.args.stream:
                self.seen_first = True
                self.run.first.append(now() - self.started)
        if self.run.paced:
            self._time(data)
        if self.chunked:
            self.tail = (self.tail + data)[-7:]
            if self.tail == LAST:
                self.waiter.set_result(True)
        elif self.length is not None and self.got >= self.length:
            self.waiter.set_result(True)

    def _time(self, data):
        at = int(now() * 1e6)
        window = self.carry + data
        end = 0
        for found in self.run.stamps.finditer(window):
            end = found.end()
            self.run.delays.append(at - int(found[1]))
            if self.previous is not None:
                self.run.gaps.append(at - self.previous)
            self.previous = at
        self.carry = window[max(end, len(window) - self.run.keep) :]

    def connection_lost(self, exc):
        self.close = True
        if self.waiter is not None and not self.waiter.done():
            whole = self.head is not None and not self.chunked and self.length is None
            self.waiter.set_result(whole)


def settle(run, client, whole, number):
    if not whole:
        return run.fail("connection lost" if client.head is None else "answer cut")
    raw = b"".join(client.parts)
    if client.status != 200:
        return run.fail(f"status {client.status}")
    if run.args.stream and run.end_mark not in (
        raw if run.args.api == "responses" else raw[-1500:]
    ):
        return run.fail("no proper end" + (": error event" if b"event: error" in raw else ""))
    run.done += 1
    run.last_done = now()
    run.bytes += len(raw)
    run.total.append(run.last_done - client.started)
    if run.args.stream:
        count = raw.count(run.mark)
        run.deltas += (
            count // 2 if run.args.api == "anthropic" else count
        )  # its name is on both lines
    if number % 50 == 0 and len(run.samples) < 200:
        run.samples.append((client.status, client.chunked, raw))
    return None


async def slot(run, index):
    loop = asyncio.get_running_loop()
    args = run.args
    if args.ramp:
        await asyncio.sleep(args.ramp * index / args.concurrency)
    client, number = None, index
    while now() < run.stop_at:
        if client is None or client.close or client.transport.is_closing():
            try:
                _, client = await loop.create_connection(lambda: Client(run), run.host, run.port)
            except OSError as error:
                run.fail(f"connect: {error.strerror}")
                await asyncio.sleep(0.05)
                continue
        run.open += 1
        run.peak_open = max(run.peak_open, run.open)
        try:
            whole = await client.send()
        finally:
            run.open -= 1
        settle(run, client, whole, number)
        number += args.concurrency + 1
        if not whole or client.status != 200:
            client.transport.close()
            client = None


class Watch:
    """CPU seconds and memory of a process and all its children."""

    def __init__(self, pids):
        self.roots = [psutil.Process(p) for p in pids]
        self.peak, self.stop = 0, threading.Event()

    def tree(self):
        out = []
        for root in self.roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                out += [root, *root.children(recursive=True)]
        return out

    def cpu(self):
        total = 0.0
        for p in self.tree():
            try:
                t = p.cpu_times()
                total += t.user + t.system
            except psutil.NoSuchProcess:
                pass
        return total

    def rss(self):
        total = 0
        for p in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += p.memory_info().rss
        return total

    def sample(self):
        while not self.stop.wait(0.25):
            self.peak = max(self.peak, self.rss())


def spread(values, scale=1000.0):
    if not values:
        return None
    values = sorted(values)

    def pick(q):
        return round(values[min(len(values) - 1, int(q * len(values)))] * scale, 3)

    return {
        "p50": pick(0.5),
        "p95": pick(0.95),
        "p99": pick(0.99),
        "max": pick(1),
        "mean": round(statistics.fmean(values) * scale, 3),
    }


async def measure(args):
    run = Run(args)
    watch = Watch(args.pid) if args.pid else None
    if watch:
        rss0, cpu0 = watch.rss(), watch.cpu()
        threading.Thread(target=watch.sample, daemon=True).start()
    me = psutil.Process()
    mine0 = sum(me.cpu_times()[:2])
    begin = now()
    run.stop_at = begin + args.time
    tasks = [asyncio.create_task(slot(run, i)) for i in range(args.concurrency)]
    _, late = await asyncio.wait(tasks, timeout=args.time + args.grace)
    run.unfinished = len(late)
    wall = (now() if late else max(run.last_done, begin + 0.001)) - begin
    for task in late:
        task.cancel()
    out = {
        "label": args.label,
        "api": args.api,
        "model": args.model,
        "size": args.size,
        "stream": args.stream,
        "concurrency": args.concurrency,
        "wall_s": round(wall, 3),
        "ok": run.done,
        "failed": run.failed,
        "unfinished": run.unfinished,
        "reasons": run.reasons,
        "rps": round(run.done / wall, 2),
        "deltas_per_s": round((len(run.delays) if run.paced else run.deltas) / wall, 1),
        "deltas_per_answer": round(run.deltas / run.done, 2) if run.done else None,
        "bytes_per_answer": run.bytes // run.done if run.done else None,
        "first_ms": spread(run.first),
        "total_ms": spread(run.total),
        "peak_open": run.peak_open,
        "client_cpu_s": round(sum(me.cpu_times()[:2]) - mine0, 3),
    }
    if run.paced:
        out["delay_ms"] = spread(run.delays, 1e-3)
        gap = int(re.search(r"-g(\d+)", args.model)[1]) * 1000
        out["gap_ms"] = spread(run.gaps, 1e-3)
        out["jitter_ms"] = spread([abs(g - gap) for g in run.gaps], 1e-3)
    if watch:
        cpu = watch.cpu() - cpu0
        watch.stop.set()
        peak = max(watch.peak, watch.rss())
        out.update(
            cpu_s=round(cpu, 3),
            cpu_util=round(cpu / wall, 3),
            rss_before_mb=round(rss0 / 2**20, 1),
            rss_peak_mb=round(peak / 2**20, 1),
            cpu_ms_per_request=round(cpu * 1000 / run.done, 4) if run.done else None,
            cpu_us_per_delta=round(cpu * 1e6 / (out["deltas_per_s"] * wall), 2)
            if out["deltas_per_s"]
            else None,
            rss_kb_per_stream=round((peak - rss0) / 1024 / run.peak_open, 1)
            if run.peak_open
            else None,
        )
    bad = {}
    for status, chunked, raw in run.samples:
        reason = validate.check(
            args.api, args.model, args.stream, status, validate.dechunk(raw) if chunked else raw
        )
        if reason:
            bad[reason] = bad.get(reason, 0) + 1
    out["sampled"], out["sampled_bad"] = len(run.samples), bad
    return out


async def check_one(args):
    run = Run(args)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(run), run.host, run.port)
    whole = await asyncio.wait_for(client.send(), 60)
    raw = b"".join(client.parts)
    raw = validate.dechunk(raw) if whole and client.chunked else raw
    if args.show:
        print((client.head or b"").decode(), "\n")
        text = raw.decode(errors="replace")
        print(text if len(text) < 6000 else text[:3000] + "\n[…]\n" + text[-2500:], file=sys.stderr)
    reason = (
        "answer cut"
        if not whole
        else validate.check(args.api, args.model, args.stream, client.status, raw)
    )
    return {
        "label": args.label,
        "model": args.model,
        "stream": args.stream,
        "size": args.size,
        "right": reason is None,
        "reason": reason,
        "deltas": raw.count(run.mark) // 2,
    }


def parser():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--url", required=True)
    p.add_argument("--path", default="")
    p.add_argument("--api", choices=list(payloads.PATHS), default="anthropic")
    p.add_argument("--model", default="mock-n200-b5-g0-text")
    p.add_argument("--model-prefix", default="")
    p.add_argument("--size", choices=payloads.SIZES, default="small")
    p.add_argument("--stream", action="store_true")
    p.add_argument("-c", "--concurrency", type=int, default=16)
    p.add_argument(
        "-t", "--time", type=float, default=5.0, help="seconds during which new requests start"
    )
    p.add_argument(
        "--grace", type=float, default=60.0, help="seconds more for the open ones to end"
    )
    p.add_argument(
        "--ramp", type=float, default=0.0, help="spread the first requests over this many seconds"
    )
    p.add_argument("--pid", type=int, action="append", default=[])
    p.add_argument("--key", default="sk-bench-" + "0000" * 8)
    p.add_argument("--bearer", default="")
    p.add_argument("--header", action="append", default=[])
    p.add_argument("--label", default="")
    p.add_argument("--check", action="store_true")
    p.add_argument("--show", action="store_true")
    return p


if __name__ == "__main__":
    arguments = parser().parse_args()
    print(json.dumps(uvloop.run(check_one(arguments) if arguments.check else measure(arguments))))
