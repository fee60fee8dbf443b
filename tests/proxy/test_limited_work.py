"""Work on hostile data ends at its limits, and the gateway goes on."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from proxy import limited_work
from proxy.limited_work import (
    FunctionRaised,
    LimitExceeded,
    Limits,
    TooBusy,
    TooLarge,
    run_each_limited,
    run_limited,
    run_limited_async,
)

HERE = __name__
QUICK = Limits(wall_s=1.0)


def reverse(data):
    return data[::-1]


def match_for_ever(data):
    """Hold the interpreter in one match: no signal handler and no other thread can run."""
    import re

    re.match(rb"(a|aa)+$", data)
    return b"done"


def match_for_ever_if_hostile(data):
    return match_for_ever(data) if data.startswith(b"aaa") else data


def sleep_long(data):
    time.sleep(60)


def take_memory(data):
    return bytes(int(data))[:3]


def repeat(data):
    return data * 1000


def fail(data):
    raise ValueError(data.decode())


def environment(data):
    return " ".join(sorted(os.environ)).encode()


def own_pid(data):
    return str(os.getpid()).encode()


def write_file(data):
    Path(data.decode()).write_text("x")


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pid, seconds=20):
    deadline = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


HOSTILE = b"a" * 60 + b"!"


def test_a_function_runs_in_one_child_for_many_calls():
    pids = {run_limited(f"{HERE}:own_pid", b"") for _ in range(3)}

    assert run_limited(f"{HERE}:reverse", b"abc") == b"cba"
    assert len(pids) == 1
    assert pids != {str(os.getpid()).encode()}


@pytest.mark.parametrize(
    ("function", "data", "limits"),
    [
        ("match_for_ever", HOSTILE, QUICK),
        ("match_for_ever", HOSTILE, Limits(wall_s=60, cpu_s=0.5)),
        ("sleep_long", b"", QUICK),
        ("take_memory", b"4000000000", Limits()),
    ],
    ids=["wall clock in a match", "CPU time in a match", "wall clock in a call", "memory"],
)
def test_work_beyond_a_limit_ends_and_the_next_call_has_a_new_child(function, data, limits):
    before = int(run_limited(f"{HERE}:own_pid", b""))

    with pytest.raises(LimitExceeded):
        run_limited(f"{HERE}:{function}", data, limits)

    wait_until_ended(before)
    assert int(run_limited(f"{HERE}:own_pid", b"")) != before


def test_of_several_items_those_before_the_one_that_failed_have_results():
    with pytest.raises(LimitExceeded) as caught:
        run_each_limited(f"{HERE}:match_for_ever_if_hostile", [b"1", b"2", HOSTILE, b"3"], QUICK)

    assert caught.value.results == [b"1", b"2"]


def test_input_and_output_are_bounded():
    with pytest.raises(TooLarge):
        run_limited(f"{HERE}:reverse", bytes(101), Limits(input_bytes=100))
    with pytest.raises(TooLarge) as caught:
        run_each_limited(f"{HERE}:repeat", [b"a", b"bb"], Limits(output_bytes=2000))

    assert caught.value.results == [b"a" * 1000]


def test_an_exception_of_the_function_is_told():
    with pytest.raises(FunctionRaised, match="ValueError: no such page"):
        run_limited(f"{HERE}:fail", b"no such page")
    with pytest.raises(FunctionRaised, match="AttributeError"):
        run_limited(f"{HERE}:no_such_function", b"")


def test_the_child_has_no_secret_of_the_environment_and_writes_no_file(monkeypatch, tmp_path):
    limited_work.close_children()
    monkeypatch.setenv("BRIDGE_SECRET", "x")

    assert b"BRIDGE" not in run_limited(f"{HERE}:environment", b"")
    with pytest.raises((LimitExceeded, FunctionRaised)):
        run_limited(f"{HERE}:write_file", str(tmp_path / "file").encode())


def test_the_event_loop_runs_while_a_child_works():
    async def both():
        work = asyncio.ensure_future(run_limited_async(f"{HERE}:match_for_ever", HOSTILE, QUICK))
        ticks = 0
        while not work.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return ticks, work

    ticks, work = asyncio.run(both())

    assert ticks > 10
    assert isinstance(work.exception(), LimitExceeded)


def test_calls_from_many_threads_share_few_children_and_too_many_are_refused():
    pids, errors = set(), []

    def call():
        try:
            pids.add(run_limited(f"{HERE}:own_pid", b"", Limits(wait_s=60)))
        except TooBusy as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(pids) <= limited_work.MAX_CHILDREN

    long = Limits(wall_s=2, cpu_s=9)

    def sleep():
        with pytest.raises(LimitExceeded):
            run_limited(f"{HERE}:sleep_long", b"", long)

    sleepers = [threading.Thread(target=sleep) for _ in range(limited_work.MAX_CHILDREN)]
    for thread in sleepers:
        thread.start()
    while limited_work._POOL._free._value:
        time.sleep(0.01)
    with pytest.raises(TooBusy):
        run_limited(f"{HERE}:reverse", b"", Limits(wait_s=0.05))
    for thread in sleepers:
        thread.join()


def test_a_child_that_ended_while_it_was_idle_is_replaced():
    pid = int(run_limited(f"{HERE}:own_pid", b""))
    os.kill(pid, signal.SIGKILL)
    wait_until_ended(pid)

    assert run_limited(f"{HERE}:reverse", b"abc") == b"cba"


@pytest.mark.parametrize("state", ["idle", "in a match"])
def test_a_child_ends_after_kill_9_of_its_parent(state):
    program = f"""
import threading
from proxy.limited_work import Limits, run_limited
print(run_limited("{HERE}:own_pid", b"").decode(), flush=True)
if "{state}" == "in a match":
    run_limited("{HERE}:match_for_ever", {HOSTILE!r}, Limits(wall_s=2, cpu_s=60))
threading.Event().wait()
"""
    with subprocess.Popen(  # noqa: S603 - this test's own program
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path.cwd(), text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()

    wait_until_ended(pid)


def _call_in_fork(pipe):
    pipe.send(run_limited(f"{HERE}:own_pid", b""))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_children_of_its_own():
    pid = run_limited(f"{HERE}:own_pid", b"")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_call_in_fork, args=(theirs,))

    process.start()
    assert ours.poll(30)
    assert ours.recv() != pid
    process.join()

    assert run_limited(f"{HERE}:own_pid", b"") == pid
