"""Floods on one connection: the gateway rejects or processes them and still serves others."""

import threading
import time

import pytest

from tests.slow.threats import raw_http


def chunks(key):
    body = raw_http.messages_body()
    return raw_http.post(
        key,
        b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n",
        "transfer-encoding: chunked",
    )


def floods(key):
    yield (
        "100,000 chunks of a byte",
        raw_http.post(key, b"1\r\nx\r\n" * 100_000, "transfer-encoding: chunked"),
    )
    yield "a body of chunks of a byte", chunks(key)
    yield "10,000 headers", raw_http.post(key, b"", *[f"x-{n}: y" for n in range(10_000)])
    yield "one header, 10,000 times", raw_http.post(key, b"", *["x-a: y"] * 10_000)
    yield "a header of 10 MB", raw_http.post(key, b"", f"x: {'y' * 10_000_000}")
    yield "a target of 1 MB", raw_http.post(key, b"", target="/" + "a" * 1_000_000)
    yield (
        "10,000 trailers",
        raw_http.post(
            key, b"1\r\nx\r\n0\r\n" + b"x-t: y\r\n" * 10_000 + b"\r\n", "transfer-encoding: chunked"
        ),
    )
    yield "5,000 pipelined", b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n" * 5_000
    yield (
        "a chunk extension of 1 MB",
        raw_http.post(
            key, b"1;" + b"a" * 1_000_000 + b"\r\nx\r\n0\r\n\r\n", "transfer-encoding: chunked"
        ),
    )
    yield "10,000 cookies", raw_http.post(key, b"", f"cookie: {'a=b; ' * 10_000}")


def rss_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123 - a file of /proc
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.timeout(300)
def test_flood_uses_little_memory_and_others_are_served(running):
    pid = running.process.process.pid
    running.assert_healthy()
    before = rss_mb(pid)
    for name, raw in floods(running.process.key):
        done = threading.Event()
        flooder = threading.Thread(
            target=lambda raw=raw, done=done: (
                raw_http.send_raw(running.process.port, raw),
                done.set(),
            )
        )
        flooder.start()
        slowest = 0.0
        while not done.is_set():
            began = time.monotonic()
            running.assert_healthy()
            slowest = max(slowest, time.monotonic() - began)
        flooder.join(90)
        assert slowest < 60, name

    running.assert_healthy()
    assert rss_mb(pid) - before < 128
