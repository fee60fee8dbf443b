"""Floods on one connection: refused or waited for, and the others never notice."""

import threading
import time

import pytest

from . import wire


def chunks(key):
    body = wire.question()
    return wire.post(
        key,
        b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n",
        "transfer-encoding: chunked",
    )


def floods(key):
    yield (
        "100,000 chunks of a byte",
        wire.post(key, b"1\r\nx\r\n" * 100_000, "transfer-encoding: chunked"),
    )
    yield "a body of chunks of a byte", chunks(key)
    yield "10,000 headers", wire.post(key, b"", *[f"x-{n}: y" for n in range(10_000)])
    yield "one header, 10,000 times", wire.post(key, b"", *["x-a: y"] * 10_000)
    yield "a header of 10 MB", wire.post(key, b"", f"x: {'y' * 10_000_000}")
    yield "a target of 1 MB", wire.post(key, b"", target="/" + "a" * 1_000_000)
    yield (
        "10,000 trailers",
        wire.post(
            key, b"1\r\nx\r\n0\r\n" + b"x-t: y\r\n" * 10_000 + b"\r\n", "transfer-encoding: chunked"
        ),
    )
    yield "5,000 pipelined", b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n" * 5_000
    yield (
        "a chunk extension of 1 MB",
        wire.post(
            key, b"1;" + b"a" * 1_000_000 + b"\r\nx\r\n0\r\n\r\n", "transfer-encoding: chunked"
        ),
    )
    yield "10,000 cookies", wire.post(key, b"", f"cookie: {'a=b; ' * 10_000}")


def rss_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as told:  # noqa: PTH123 - not a file of anybody's
        return next(int(line.split()[1]) / 1024 for line in told if line.startswith("VmRSS"))


@pytest.mark.timeout(300)
def test_a_flood_costs_neither_memory_nor_the_others(running):
    pid = running.process.process.pid
    running.is_well()
    before = rss_mb(pid)
    for name, raw in floods(running.process.key):
        done = threading.Event()
        flooder = threading.Thread(
            target=lambda raw=raw, done=done: (wire.say(running.process.port, raw), done.set())
        )
        flooder.start()
        slowest = 0.0
        while not done.is_set():
            began = time.monotonic()
            running.is_well()
            slowest = max(slowest, time.monotonic() - began)
        flooder.join(90)
        assert slowest < 60, name

    running.is_well()
    assert rss_mb(pid) - before < 128
