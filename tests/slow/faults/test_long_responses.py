"""A very long response reaches its client, and the gateway's memory does not grow.

``BRIDGE_LONG_ANSWER_MB=2000 pytest tests/slow/faults/test_long_responses.py`` is the long version.
"""

import os

import pytest

from tests.fakes.upstreams.script_steps import LAST_CHUNK, chunk, stream_head

from .environment.client import RawClient, usual_request
from .environment.invariants import World
from .fault_scripts import EVENTS_BY_DIALECT, PROLOGUE

MEGABYTES = int(os.environ.get("BRIDGE_LONG_ANSWER_MB", "128"))  # bytes from the upstream
STORED_MB = 36  # more than a transcript stores of raw bytes; after it memory must not grow
LETTERS = {
    "chat": 100,
    "anthropic": 1_000,
}  # larger for passthrough, which handles fewer events per byte
FLAT_MB = 12
"""Maximum growth in MB: more than the bytes in transit, less than half of the bytes between two marks."""
MOST_MB = 192
"""Maximum peak in MB, including the writing of the largest possible transcript."""


DATABASE_AND_DIALECT = [
    ("sqlite", "chat"),
    pytest.param("sqlite", "anthropic", marks=pytest.mark.slow),
    pytest.param("postgresql", "chat", marks=pytest.mark.slow),
    pytest.param("postgresql", "anthropic", marks=pytest.mark.slow),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("world", "dialect"), DATABASE_AND_DIALECT, indirect=["world"])
def test_very_long_response_does_not_grow_memory(world: World, dialect: str):
    world.mark()
    before = world.reset_peak() / 1024
    model = f"steady-{dialect}-endless"
    events = EVENTS_BY_DIALECT[dialect](["w" * LETTERS[dialect]])
    at = PROLOGUE[dialect]
    many = chunk(events[at] * (2**20 // len(events[at])))
    world.upstream_of("steady").on(
        model,
        [stream_head(), *map(chunk, events[:at]), *[many] * MEGABYTES,
         *map(chunk, events[at + 1 :]), LAST_CHUNK],
    )  # fmt: skip
    client = RawClient(
        world.gateway.port, world.secret_of("tests"), usual_request(model, "stream", {})
    )
    marks = [mb * 2**20 for mb in (STORED_MB, (STORED_MB + MEGABYTES * 0.75) / 2, MEGABYTES * 0.75)]
    peaks = []  # peak memory between two marks, in MB
    with client:
        client.post()
        received, end = 0, b""
        while not end.endswith(b"\r\n0\r\n\r\n"):
            piece = client.sock.recv(2**20)
            assert piece, end
            received, end = received + len(piece), (end + piece)[-200:]
            if marks and received > marks[0]:
                peaks.append(world.peak_kib() / 1024)
                world.reset_peak()
                del marks[0]

    assert b"event: message_stop" in end
    _, early, later = peaks
    assert later - early < FLAT_MB, f"{before:.0f} MB, then {early:.0f}, then {later:.0f}"
    (row,) = world.assert_invariants(accepted=1)
    assert row["outcome"] == "completed"
    assert {note["fate"] for note in row["notes"]} == {"dropped"}  # the transcript is cut
    assert world.peak_kib() / 1024 - before < MOST_MB
