"""The process that writes the spool is killed under load: nobody notices, nothing is lost."""

import os
import signal
import time
from pathlib import Path

from tests.fakes.crowd import Crowd, chat_answer, judge
from tests.fakes.gateway import Gateway
from tests.fakes.killing import config_for, wait_until_drained
from tests.fakes.upstream import ScriptedUpstream

KILLS = 5


def writers_of(gateway: Gateway) -> list[int]:
    """Its children that write a spool, as the kernel tells them."""
    tasks = Path(f"/proc/{gateway.process.pid}/task").glob("*/children")
    pids = [int(pid) for told in tasks for pid in read(told).split()]
    return [pid for pid in pids if b"spool_writer" in read(Path(f"/proc/{pid}/cmdline"))]


def read(told: Path) -> bytes:
    """Nothing, of a thread or a process that has ended since it was found."""
    try:
        return told.read_bytes()
    except OSError:
        return b""


def kill_the_next_writer(gateway: Gateway, dead: set[int], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not (alive := set(writers_of(gateway)) - dead):
        assert time.monotonic() < deadline, f"no writer took the place of {dead}"
        time.sleep(0.02)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    dead |= alive


def test_clients_hear_nothing_of_a_writer_that_is_killed_again_and_again(tmp_path) -> None:
    with ScriptedUpstream() as player:
        player.choose(chat_answer)
        gateway = Gateway(tmp_path / "gateway", config=config_for(player))
        with gateway:
            dead: set[int] = set()
            with Crowd(gateway.port, gateway.key, "crowd", size=20) as crowd:
                for kill in range(1, KILLS + 1):
                    kill_the_next_writer(gateway, dead)
                    while len(crowd.sent) < kill * 20:  # they go on
                        time.sleep(0.02)
            wait_until_drained(gateway)
        verdict = judge(crowd.sent, player.asked, gateway.rows().values())

        assert {each.ending for each in crowd.sent} == {"whole"}
        assert len(dead) == KILLS
        assert verdict.faults == {}
        assert "everything is as it was written" in gateway.manage("verifyledger")
