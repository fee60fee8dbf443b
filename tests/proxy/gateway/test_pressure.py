"""Load is shed before everybody's answers are late."""

import asyncio
import time

from proxy.gateway.pressure import IN_A_ROW, TICK_S, Pressure
from tests.fakes.steps import Sleep
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import message


def test_one_long_pause_is_only_a_delay():
    pressure = Pressure()

    pressure.noted(5.0)

    assert not pressure.too_much


def test_being_late_again_and_again_is_too_much_until_it_is_not(tuned):
    tuned(shed_lag_s=0.25)
    pressure = Pressure()

    for _ in range(IN_A_ROW):
        assert not pressure.too_much
        pressure.noted(0.3)
    assert pressure.too_much

    pressure.noted(0.1)
    assert not pressure.too_much


async def test_a_busy_loop_is_noticed(tuned):
    tuned(shed_lag_s=TICK_S)
    pressure = Pressure()
    pressure.start()
    try:
        async with asyncio.timeout(30):
            while not pressure.too_much:
                _burn(4 * TICK_S)
                await asyncio.sleep(0)
    finally:
        pressure.stop()


def _burn(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        pass


def test_new_requests_are_refused_and_those_that_run_go_on(
    gateway: Browser, scripted: ScriptedUpstream, tuned
):
    events = scripts.chat_events(["first", " last"])
    script = [*scripts.pieces(events[:2]), Sleep(0.5), *scripts.pieces(events[2:])[1:]]
    scripted.on("chat-runs", script)
    scripted.on("chat-new", scripts.chat())
    assert gateway.post(message("chat-new")).status == 200

    with gateway.open(message("chat-runs", stream=True)) as running:
        seen = b""
        while b"first" not in seen:
            seen += running.recv(65_536)
        tuned(shed_lag_s=-1.0)  # whatever comes is late
        reply = _until_shed(gateway)
        probe = gateway.ask("GET", "/readyz")
        while b"message_stop" not in seen and (piece := running.recv(65_536)):
            seen += piece

    assert reply.json["error"]["type"] == "overloaded_error"
    assert reply.headers["retry-after"] == "1"
    assert probe.status == 200
    assert b"message_stop" in seen
    tuned(shed_lag_s=3600)
    _until_served(gateway)  # before the next test asks


def _until_served(gateway: Browser) -> None:
    deadline = time.monotonic() + 60
    while gateway.post(message("chat-new")).status != 200:
        assert time.monotonic() < deadline, "nothing is served any more"


def _until_shed(gateway: Browser):
    for _ in range(10_000):
        reply = gateway.post(message("chat-new"))
        if reply.status == 529:
            return reply
    raise AssertionError("nothing is ever shed")
