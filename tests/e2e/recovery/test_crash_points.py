"""The gateway is killed at many crash points and loses or duplicates no record (fault P04).

The fast lane tests every 50th point, the slow lane all of them.
"""

import itertools

import pytest

from tests.fakes.load.crash_points import CRASHES, POINTS, RestartedGateway, resolve
from tests.fakes.load.kill_process import (
    config_for,
    reserved_port,
    wait_until_drained,
    wait_until_ready,
)
from tests.fakes.load.load_client import LoadClients, chat_response, compare_records
from tests.fakes.upstreams.script_steps import Sleep
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat

POINTS_TO_TEST = repeat(fast="some", slow="all", variable="BRIDGE_TEST_CRASH_POINTS")
SELECTED = CRASHES if POINTS_TO_TEST == "all" else CRASHES[2::50]
"""Of these, one is before the upstream's request, one during its response and one after it."""
LIFE_S = 6.0  # for a point that may not be reached
REACHED_S = 60.0  # for a point that must be reached; it ends the process at once
RARE = {
    "remove_posted_segments",
    "save_drain_watermark",
    "_next_records",
    "take",
    "load_snapshot",
    "run_round",
}
"""Rarely called functions: a process may not reach their third call in time."""


def is_rare(crash):
    return crash.place.split(":")[1].split(".")[-1] in RARE


def without_pauses(requests):
    return [step for step in chat_response(requests) if not isinstance(step, Sleep)]


@pytest.mark.parametrize("point", POINTS)
def test_every_crash_point_names_a_function(point):
    owner, name = resolve(point)

    assert callable(getattr(owner, name))


@pytest.mark.repeated
@pytest.mark.timeout(240 + 24 * len(SELECTED))
def test_no_record_is_lost_or_duplicated_at_any_crash_point(tmp_path):
    numbers = itertools.count(1)
    sent, unreached = [], []
    with ScriptedUpstream() as upstream, reserved_port() as port:
        upstream.choose(without_pauses)
        gateway = RestartedGateway(tmp_path / "gateway", config=config_for(upstream), port=port)
        gateway.prepare_python()
        try:
            for crash in SELECTED:
                gateway.start_child(crash)
                if wait_until_ready(gateway, 60):
                    with LoadClients(
                        gateway.port, gateway.key, "load", 3, numbers, pause_s=0.02
                    ) as load:
                        if not gateway.wait_for_end(LIFE_S if is_rare(crash) else REACHED_S):
                            unreached.append(crash)
                            gateway.kill()
                    sent += load.sent
                else:
                    assert gateway.wait_for_end(0), f"not ready: {crash.label}\n{gateway.log}"
            gateway.start_child(None)
            assert wait_until_ready(gateway, 60), gateway.log
            with LoadClients(gateway.port, gateway.key, "load", 3, numbers, pause_s=0.02) as load:
                upstream.wait_until(lambda requests: len(requests) > len(SELECTED))
            sent += load.sent
            wait_until_drained(gateway)
            upstream.wait_until(lambda requests: all(each.ending for each in requests))
            rows = gateway.rows().values()
            verdict = compare_records(sent, upstream.requests, rows)
            audit = gateway.manage("verifyledger")
        finally:
            gateway.close()

    assert any(row["outcome"] == "interrupted" for row in rows), "no request ran at a crash"
    assert verdict.faults == {}
    assert "everything is as it was written" in audit
    assert [crash.label for crash in unreached if not is_rare(crash)] == []
