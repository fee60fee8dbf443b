"""Faults of the process that holds the gateway: its loop stands still, its clock jumps."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.gateway.base import RUNNING
from tests.fakes.steps import LAST_CHUNK, Hold, Sleep, chunk, stream_head

from . import scripts
from .conftest import message, row


def test_a_blocked_event_loop_is_a_delay_only(gateway, scripted, deadlines):
    """P08: the loop of the gateway in this process stands still for a second and a half."""
    deadlines(idle_s=1)
    gate = threading.Event()
    scripted.on("chat-blocked", [stream_head(), chunk(scripts.chat_events()[1]), Hold(gate),
                                 chunk(b"".join(scripts.chat_events()[2:])), LAST_CHUNK])  # fmt: skip
    stood = threading.Event()

    async def stand_still() -> None:
        gate.set()  # the rest comes meanwhile
        time.sleep(1.5)  # noqa: ASYNC251 - the fault itself
        stood.set()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.post, message("chat-blocked", stream=True))
        scripted.wait_until(lambda all_asked: any(one.model == "chat-blocked" for one in all_asked))
        loop = next(task.get_loop() for task in list(RUNNING) if task is not None)
        asyncio.run_coroutine_threadsafe(stand_still(), loop)
        reply = asked.result(90)

    assert stood.is_set()
    assert reply.kinds[-1] == "message_stop"
    row(reply.id, outcome="completed")


def test_what_comes_in_the_moment_in_which_the_hold_ends_is_told_once(gateway, scripted, tuned):
    """The loop stands still meanwhile, so that it finds both: the time is over, the answer there."""
    tuned(hold_s=1.0)
    gate = threading.Event()
    scripted.on("chat-just-then", [Hold(gate), *scripts.chat()])

    async def stand_still() -> None:
        gate.set()
        time.sleep(1.5)  # noqa: ASYNC251 - the fault itself

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.post, message("chat-just-then", stream=True))
        scripted.wait_until(lambda _: scripted.asked_for("chat-just-then"))
        loop = next(task.get_loop() for task in list(RUNNING) if task is not None)
        asyncio.run_coroutine_threadsafe(stand_still(), loop)
        reply = asked.result(90)

    assert reply.text == "Hello there."
    assert reply.kinds.count("message_start") == reply.kinds.count("message_stop") == 1


@pytest.mark.parametrize("jump_s", [3_600, -3_600, 86_400, -86_400, 1, -1])
def test_a_clock_that_jumps_ends_nothing_and_makes_no_duration_negative(
    gateway, scripted, monkeypatch, jump_s
):
    """P07: durations come from the clock that only goes forward."""
    gate = threading.Event()
    scripted.on("chat-jump", [stream_head(), chunk(scripts.chat_events()[1]), Hold(gate), Sleep(0.4),
                              chunk(b"".join(scripts.chat_events()[2:])), LAST_CHUNK])  # fmt: skip
    real = time.time
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.post, message("chat-jump", stream=True))
        scripted.wait_until(
            lambda all_asked: sum(one.model == "chat-jump" for one in all_asked) > 0
        )
        with monkeypatch.context() as during:
            during.setattr(time, "time", lambda: real() + jump_s)
            gate.set()
            reply = asked.result(90)
            again = gateway.post(message("chat-jump"))

    assert reply.kinds[-1] == "message_stop"
    assert again.status == 200  # no key has expired early, no deadline fired
    found = row(reply.id, outcome="completed")
    assert 300 < found.total_ms < 60_000  # not the hour of the jump
    assert found.finished >= found.created
