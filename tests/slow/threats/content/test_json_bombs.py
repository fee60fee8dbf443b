"""Small texts that decode into large objects: rejected before they use the memory."""

import gzip
import json
import zlib
from pathlib import Path

import pytest

from tests.fakes.upstreams.script_steps import json_response
from tests.slow.threats import raw_http

MB = 2**20
ROOM_MB = 256


def peak_mb(pid: int) -> float:
    """Return the peak memory of the process since ``reset_peak``."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if "VmHWM" in line)


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def empty_objects() -> bytes:
    """Return 31 MB that decode into 1.5 GB of objects."""
    return b'{"model":"chat-x","max_tokens":1,"messages":[' + b"{}," * (10 * MB) + b"{}]}"


def two_member_gzip(size: int) -> bytes:
    """Return a valid gzip body with a bomb as its second member."""
    return gzip.compress(raw_http.messages_body()) + gzip.compress(b" " * size)


GZIP = {"content-encoding": "gzip"}
BOMBS = {
    "objects": (empty_objects, {}, 413),
    "objects in gzip": (lambda: zlib.compress(empty_objects(), 9, wbits=31), GZIP, 413),
    "junk behind gzip": (
        lambda: gzip.compress(raw_http.messages_body()) + bytes(30 * MB),
        GZIP,
        400,
    ),
    "a bomb behind gzip": (lambda: two_member_gzip(100 * MB), GZIP, 400),
}
"""Name -> a function that builds the body, the headers, and the status of the response."""


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("name", BOMBS)
def test_request_bomb_is_rejected_before_it_uses_memory(running, name, path):
    build, headers, status = BOMBS[name]
    body = build()
    pid = running.process.process.pid
    running.assert_healthy()
    reset_peak(pid)
    before = peak_mb(pid)

    reply = running.process.request("POST", path, body, headers)

    assert reply.status == status, reply.body
    assert json.loads(reply.body)["type"] == "error"
    assert peak_mb(pid) - before < ROOM_MB
    running.assert_healthy()


def test_upstream_bomb_is_not_decoded(running):
    running.upstream.on("chat-bomb", json_response(b'{"choices":[' + b"{}," * (10 * MB) + b"{}]}"))
    pid = running.process.process.pid
    running.assert_healthy()
    reset_peak(pid)
    before = peak_mb(pid)

    reply = running.process.request(
        "POST", "/v1/messages", raw_http.messages_body(model="chat-bomb")
    )

    assert reply.status == 502, reply.body
    assert peak_mb(pid) - before < ROOM_MB
    running.assert_healthy()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 9_000, 400),
        (b'{"a":' * 5_000, 400),
        (b'{"x":[' + b"{}," * 20_000 + b"{}]}", 413),
        (b'{"x": NaN}', 400),
        (b"\xff", 400),
    ],
    ids=["deep", "deep objects", "many", "not a number", "not UTF-8"],
)
def test_report_request_bomb_is_rejected(running, body, status):
    reply = running.process.request(
        "POST", "/api/v1/exports/", body, {"content-type": "application/json"}
    )

    assert reply.status == status, reply.body
    assert json.loads(reply.body)["type"] == "error"
