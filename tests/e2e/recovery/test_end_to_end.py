"""Random event sequences: requests, cuts, disconnects, kills, a locked database, drains.

After each sequence the ledger agrees with clients and upstream (I1 to I5). A seed determines the
sequence: ``BRIDGE_TEST_SCENARIOS=100 BRIDGE_TEST_SCENARIO_SEED=7``.
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import sqlite3
import time

import pytest

from tests.fakes.load.crash_points import RestartedGateway
from tests.fakes.load.kill_process import config_for, reserved_port
from tests.fakes.load.load_client import (
    SESSION,
    Sent,
    chat_response,
    classify_response,
    compare_records,
    number_of,
)
from tests.fakes.upstreams.script_steps import Reset, Sleep
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.slow.threats import raw_http

SCENARIOS = int(os.environ.get("BRIDGE_TEST_SCENARIOS", "10"))
FIRST = int(os.environ.get("BRIDGE_TEST_SCENARIO_SEED", "1"))
EVENT_COUNT = 24


class RandomScenario:
    def __init__(self, folder, upstream, port, seed):
        self.rng = random.Random(seed)  # noqa: S311 - seeded for repeatable tests
        self.upstream = upstream
        self.numbers = itertools.count(1)
        self.sent, self.cut_numbers = [], set()
        self.gateway = RestartedGateway(folder, config=config_for(upstream), port=port)
        self.lock_connection = None
        self.event_names = []
        upstream.choose(self.script_for)

    def script_for(self, request):
        steps = [step for step in chat_response(request) if not isinstance(step, Sleep)]
        number = number_of(request)
        if number in self.cut_numbers:
            return [*steps[: len(steps) // 2], Sleep(0.02), Reset()]
        return steps

    # Events

    def send(self, *, disconnect=False, cut=False):
        number = next(self.numbers)
        if cut:
            self.cut_numbers.add(number)
        body = raw_http.messages_body(
            model="load",
            stream=True,
            messages=[{"role": "user", "content": f"This is request number {number}."}],
        )
        head = raw_http.post(self.gateway.key, body, f"content-length: {len(body)}",
                         "connection: close", f"x-claude-code-session-id: {SESSION}{number}")  # fmt: skip
        with contextlib.suppress(OSError):
            response = raw_http.send_raw(
                self.gateway.port, head, silence_s=0.0 if disconnect else 20.0
            )
            self.sent.append(Sent(number, *classify_response(response.raw), response.raw))

    def disconnect(self):
        self.send(disconnect=True)

    def send_with_cut_response(self):
        self.send(cut=True)

    def send_several(self):
        for _ in range(self.rng.randint(2, 6)):
            self.send()

    def kill(self):
        self.gateway.kill()
        self.start_process()

    def drain(self):
        self.database_up()  # a drain waits ten seconds for the database
        self.gateway.kill(signal.SIGTERM)
        self.start_process()

    def database_down(self):
        if self.lock_connection is None:
            database = self.gateway.folder / "data" / "ledger.sqlite3"
            self.lock_connection = sqlite3.connect(database, isolation_level=None, timeout=30)
            self.lock_connection.execute("BEGIN EXCLUSIVE")

    def database_up(self):
        if self.lock_connection is not None:
            self.lock_connection.execute("ROLLBACK")
            self.lock_connection.close()
            self.lock_connection = None

    def pause_process(self):
        os.kill(self.gateway.pid, signal.SIGSTOP)
        time.sleep(0.1)  # the fault itself
        os.kill(self.gateway.pid, signal.SIGCONT)

    EVENTS = (
        send,
        send_several,
        send_several,
        disconnect,
        send_with_cut_response,
        send_with_cut_response,
        kill,
        drain,
        database_down,
        database_up,
        pause_process,
    )

    def start_process(self):
        """Start the next process; unlock the database, because a start writes to it."""
        self.database_up()
        self.gateway.start_child(None)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert not self.gateway.wait_for_end(0.05), self.gateway.log
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.gateway.request("GET", "/readyz").status == 200:
                    return
        raise AssertionError(self.gateway.log)

    def run(self):
        """Run the events; return the rows and what verifyledger says."""
        self.gateway.prepare_python()
        try:
            self.start_process()
            for _ in range(EVENT_COUNT):
                event = self.rng.choice(self.EVENTS)
                self.event_names.append(event.__name__)
                event(self)
            self.database_up()
            deadline = time.monotonic() + 60
            while json.loads(self.gateway.request("GET", "/readyz").body)["backlog"]:
                assert time.monotonic() < deadline, "the backlog did not become empty"
                time.sleep(0.1)
            self.upstream.wait_until(lambda requests: all(each.ending for each in requests))
            return self.gateway.rows(), self.gateway.manage("verifyledger")
        finally:
            self.gateway.close()


@pytest.mark.slow  # the fast lane has each of these events in a test of its own, and simulations
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SCENARIOS))
def test_ledger_is_correct_after_random_events(tmp_path, seed):
    with ScriptedUpstream() as upstream, reserved_port() as port:
        scenario = RandomScenario(tmp_path / "gateway", upstream, port, seed)
        rows, audit = scenario.run()
        verdict = compare_records(scenario.sent, upstream.requests, rows.values())

    by_number = {
        int(row["session_id"].removeprefix(SESSION)): row
        for row in rows.values()
        if row["session_id"]
    }
    assert verdict.faults == {}, scenario.event_names
    assert "everything is as it was written" in audit
    assert not {by_number[n]["outcome"] for n in scenario.cut_numbers if n in by_number} & {
        "completed"
    }
    endings = {sent.number: sent.ending for sent in scenario.sent}
    assert not [
        n for n, ending in endings.items() if ending == "whole" and n in scenario.cut_numbers
    ], scenario.event_names
    assert len(verdict.sent) > EVENT_COUNT / 6
