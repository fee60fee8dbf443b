"""Faults of the gateway's process: a blocked event loop, a clock that jumps."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.gateway.endpoints.http_consumer import RUNNING
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Sleep, WaitForGate, chunk, stream_head
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row


def test_a_blocked_event_loop_only_delays_a_stream(gateway, scripted, deadlines):
    """P08: the event loop of the gateway is blocked for longer than the upstream may be silent."""
    deadlines(idle_s=1)
    gate = threading.Event()
    scripted.on("chat-blocked", [stream_head(), chunk(upstream_scripts.chat_events()[1]), WaitForGate(gate),
                                 chunk(b"".join(upstream_scripts.chat_events()[2:])), LAST_CHUNK])  # fmt: skip
    blocked = threading.Event()

    async def block_loop() -> None:
        gate.set()  # the rest of the response arrives
        time.sleep(1.5)  # noqa: ASYNC251 - the fault itself
        blocked.set()

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(gateway.post, message("chat-blocked", stream=True))
        scripted.wait_until(lambda requests: any(one.model == "chat-blocked" for one in requests))
        loop = next(task.get_loop() for task in list(RUNNING) if task is not None)
        asyncio.run_coroutine_threadsafe(block_loop(), loop)
        reply = pending.result(90)

    assert blocked.is_set()
    assert reply.kinds[-1] == "message_stop"
    row(reply.id, outcome="completed")


def test_an_answer_that_arrives_as_the_hold_time_ends_is_sent_once(gateway, scripted, settings):
    """The loop is blocked, so that it then finds both an expired timer and a response."""
    settings.FIRST_EVENT_WAIT_S = 0.5
    gate = threading.Event()
    scripted.on("chat-just-then", [WaitForGate(gate), *upstream_scripts.chat()])

    async def block_loop() -> None:
        gate.set()
        time.sleep(0.8)  # noqa: ASYNC251 - the fault itself

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(gateway.post, message("chat-just-then", stream=True))
        scripted.wait_until(lambda _: scripted.requests_for("chat-just-then"))
        loop = next(task.get_loop() for task in list(RUNNING) if task is not None)
        asyncio.run_coroutine_threadsafe(block_loop(), loop)
        reply = pending.result(90)

    assert reply.text == "Hello there."
    assert reply.kinds.count("message_start") == reply.kinds.count("message_stop") == 1


@pytest.mark.parametrize(
    "jump_s",
    [-86_400, *(pytest.param(s, marks=pytest.mark.slow) for s in (3_600, -3_600, 86_400, 1, -1))],
)
def test_a_clock_jump_ends_no_request_and_makes_no_duration_negative(
    gateway, scripted, monkeypatch, jump_s
):
    """P07: durations are measured with the monotonic clock."""
    gate = threading.Event()
    scripted.on("chat-jump", [stream_head(), chunk(upstream_scripts.chat_events()[1]), WaitForGate(gate), Sleep(0.4),
                              chunk(b"".join(upstream_scripts.chat_events()[2:])), LAST_CHUNK])  # fmt: skip
    real = time.time
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(gateway.post, message("chat-jump", stream=True))
        scripted.wait_until(lambda requests: sum(one.model == "chat-jump" for one in requests) > 0)
        with monkeypatch.context() as during:
            # A test cannot set the clock of the machine.
            during.setattr(time, "time", lambda: real() + jump_s)
            gate.set()
            reply = pending.result(90)
            again = gateway.post(message("chat-jump"))

    assert reply.kinds[-1] == "message_stop"
    assert again.status == 200  # no key has expired early, no deadline fired
    found = row(reply.id, outcome="completed")
    assert 300 < found.total_ms < 60_000  # without the hour of the jump
    assert found.finished >= found.created
