"""Small texts that decode into much: they are refused before they take the memory."""

import gzip
import json
import zlib
from pathlib import Path

import pytest

from tests.fakes.steps import json_answer

from . import wire

MB = 2**20
EMPTY = b'{"model":"chat-x","max_tokens":1,"messages":[' + b"{}," * (10 * MB) + b"{}]}"
"""31 MB that decode into 1.5 GB."""
ROOM_MB = 256


def peak_mb(pid: int) -> float:
    """The most memory that the process has had since ``forget_peak``."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if "VmHWM" in line)


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def trailed(size: int) -> bytes:
    """A sound gzip body with a bomb as its second member."""
    return gzip.compress(wire.question()) + gzip.compress(b" " * size)


BOMBS = {
    "objects": (EMPTY, {}, 413),
    "objects in gzip": (zlib.compress(EMPTY, 9, wbits=31), {"content-encoding": "gzip"}, 413),
    "junk behind gzip": (
        gzip.compress(wire.question()) + bytes(30 * MB), {"content-encoding": "gzip"}, 400,
    ),
    "a bomb behind gzip": (trailed(100 * MB), {"content-encoding": "gzip"}, 400),
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_the_memory(running, name, path):
    body, headers, status = BOMBS[name]
    pid = running.process.process.pid
    running.is_well()
    forget_peak(pid)
    before = peak_mb(pid)

    reply = running.process.ask("POST", path, body, headers)

    assert reply.status == status, reply.body
    assert json.loads(reply.body)["type"] == "error"
    assert peak_mb(pid) - before < ROOM_MB
    running.is_well()


def test_a_bomb_of_an_upstream_is_not_decoded(running):
    running.upstream.on("chat-bomb", json_answer(b'{"choices":[' + b"{}," * (10 * MB) + b"{}]}"))
    pid = running.process.process.pid
    running.is_well()
    forget_peak(pid)
    before = peak_mb(pid)

    reply = running.process.ask("POST", "/v1/messages", wire.question(model="chat-bomb"))

    assert reply.status == 502, reply.body
    assert peak_mb(pid) - before < ROOM_MB
    running.is_well()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 9_000, 400),
        (b'{"a":' * 5_000, 400),
        (b'{"x":[' + b"{}," * 20_000 + b"{}]}", 413),
        (b'{"x": NaN}', 400),
        (b"\xff", 400),
    ],
    ids=["deep", "deep objects", "many", "no number", "no text"],
)
def test_a_bomb_for_the_reports_is_refused(running, body, status):
    reply = running.process.ask(
        "POST", "/api/v1/exports/", body, {"content-type": "application/json"}
    )

    assert reply.status == status, reply.body
    assert json.loads(reply.body)["type"] == "error"
