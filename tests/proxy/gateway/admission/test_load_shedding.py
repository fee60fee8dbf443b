"""Load shedding refuses new requests when the event loop lags."""

import asyncio
import time

from proxy.gateway.admission.load_shedding import IN_A_ROW, TICK_S, LoadShedder
from tests.fakes.upstreams.script_steps import Sleep
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message
from tests.proxy.gateway.http_client import GatewayClient


def test_one_long_pause_is_only_a_delay():
    pressure = LoadShedder()

    pressure.record_lag(5.0)

    assert not pressure.is_overloaded


def test_repeated_lag_is_overload_until_it_ends(settings):
    settings.SHED_LAG_S = 0.25
    pressure = LoadShedder()

    for _ in range(IN_A_ROW):
        assert not pressure.is_overloaded
        pressure.record_lag(0.3)
    assert pressure.is_overloaded

    pressure.record_lag(0.1)
    assert not pressure.is_overloaded


async def test_a_busy_event_loop_is_detected(settings):
    settings.SHED_LAG_S = TICK_S / 4
    pressure = LoadShedder()
    pressure.start()
    try:
        async with asyncio.timeout(30):
            while not pressure.is_overloaded:
                _burn(1.5 * TICK_S)
                await asyncio.sleep(0)
    finally:
        pressure.stop()


def _burn(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        pass


def test_overload_refuses_new_requests_and_continues_running_ones(
    gateway: GatewayClient, scripted: ScriptedUpstream, settings
):
    events = upstream_scripts.chat_events(["first", " last"])
    script = [
        *upstream_scripts.pieces(events[:2]),
        Sleep(0.5),
        *upstream_scripts.pieces(events[2:])[1:],
    ]
    scripted.on("chat-runs", script)
    scripted.on("chat-new", upstream_scripts.chat())
    assert gateway.post(message("chat-new")).status == 200

    with gateway.open(message("chat-runs", stream=True)) as running:
        seen = b""
        while b"first" not in seen:
            seen += running.recv(65_536)
        settings.SHED_LAG_S = -1.0  # every tick counts as late
        reply = _until_shed(gateway)
        probe = gateway.request("GET", "/readyz")
        while b"message_stop" not in seen and (piece := running.recv(65_536)):
            seen += piece

    assert reply.json["error"]["type"] == "overloaded_error"
    assert reply.headers["retry-after"] == "1"
    assert probe.status == 200
    assert b"message_stop" in seen
    settings.SHED_LAG_S = 3600
    _until_served(gateway)  # before the next test


def _until_served(gateway: GatewayClient) -> None:
    deadline = time.monotonic() + 60
    while gateway.post(message("chat-new")).status != 200:
        assert time.monotonic() < deadline, "nothing is served any more"


def _until_shed(gateway: GatewayClient):
    for _ in range(10_000):
        reply = gateway.post(message("chat-new"))
        if reply.status == 529:
            return reply
    raise AssertionError("nothing is ever shed")
