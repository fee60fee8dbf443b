"""An answer that goes on and on: it reaches its client, and the gateway's memory stays as it was.

``BRIDGE_LONG_ANSWER_MB=2000 pytest tests/faults/test_long_answers.py`` is the long version.
"""

import os

import pytest

from tests.fakes.steps import LAST_CHUNK, chunk, stream_head

from .client import LyingClient, usual_request
from .plays import PROLOGUE, SPOKEN
from .world import World

MEGABYTES = int(os.environ.get("BRIDGE_LONG_ANSWER_MB", "128"))  # of the upstream's bytes
KEPT_MB = 36  # more than a transcript keeps of raw bytes: from there on nothing may grow
LETTERS = {"chat": 100, "anthropic": 1_000}  # an upstream's own bytes are looked at one by one
FLAT_MB = 12
"""More than what is on its way through the gateway takes for a moment, less than half of what comes
between two looks."""
MOST_MB = 192
"""With what writing the largest transcript that there can be takes for a moment."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dialect", LETTERS)
def test_an_answer_without_end_fills_no_memory(world: World, dialect: str):
    world.mark()
    before = world.peak_reset() / 1024
    model = f"steady-{dialect}-endless"
    events = SPOKEN[dialect](["w" * LETTERS[dialect]])
    at = PROLOGUE[dialect]
    many = chunk(events[at] * (2**20 // len(events[at])))
    world.upstream_of("steady").on(
        model,
        [stream_head(), *map(chunk, events[:at]), *[many] * MEGABYTES,
         *map(chunk, events[at + 1 :]), LAST_CHUNK],
    )  # fmt: skip
    client = LyingClient(
        world.gateway.port, world.secret_of("tests"), usual_request(model, "stream", {})
    )
    marks = [mb * 2**20 for mb in (KEPT_MB, (KEPT_MB + MEGABYTES * 0.75) / 2, MEGABYTES * 0.75)]
    peaks = []  # of what came until each mark since the one before, in MB
    with client:
        client.post()
        heard, end = 0, b""
        while not end.endswith(b"\r\n0\r\n\r\n"):
            piece = client.sock.recv(2**20)
            assert piece, end
            heard, end = heard + len(piece), (end + piece)[-200:]
            if marks and heard > marks[0]:
                peaks.append(world.peak() / 1024)
                world.peak_reset()
                del marks[0]

    assert b"event: message_stop" in end
    _, early, later = peaks
    assert later - early < FLAT_MB, f"{before:.0f} MB, then {early:.0f}, then {later:.0f}"
    (row,) = world.assert_world(accepted=1)
    assert row["outcome"] == "completed"
    assert {note["fate"] for note in row["notes"]} == {"dropped"}
    assert world.peak() / 1024 - before < MOST_MB
