"""Repeated kills and restarts of the gateway under load.

``BRIDGE_TEST_GATEWAY_KILLS`` and ``BRIDGE_TEST_RESTARTS`` set their numbers;
``benchmarks/ledger/gateway_kills.py`` kills it 1,000 times under 200 streams.
"""

import os
import signal
from collections import Counter

import pytest

from tests.fakes.load.kill_process import RepeatedKills
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat

KILLS = repeat(fast=2, slow=100, variable="BRIDGE_TEST_GATEWAY_KILLS")
RESTARTS = int(os.environ.get("BRIDGE_TEST_RESTARTS", "100"))
WITHIN_S = 6  # for each, on a loaded machine


@pytest.mark.repeated
@pytest.mark.timeout(240 + WITHIN_S * KILLS)
def test_repeated_kills_lose_or_duplicate_no_request(tmp_path) -> None:
    with ScriptedUpstream() as upstream:
        kills = RepeatedKills(tmp_path / "gateway", upstream, streams=repeat(fast=10, slow=30))

        cut_off = sum(kills.kill_times(KILLS, at_most_s=0.6))
        verdict = kills.verdict()

    assert cut_off >= KILLS, "no request was running at the kills, so the test proves nothing"
    assert len(verdict.called) >= KILLS
    assert verdict.faults == {}


@pytest.mark.slow  # the fast lane restarts two nodes in tests/e2e/nodes/test_two_nodes.py
@pytest.mark.timeout(240 + WITHIN_S * RESTARTS)
def test_repeated_restarts_end_every_stream_with_an_event(
    tmp_path,
) -> None:
    with ScriptedUpstream() as upstream:
        restarts = RepeatedKills(
            tmp_path / "gateway",
            upstream,
            streams=20,
            kill_signal=signal.SIGTERM,
            BRIDGE_DRAIN_S="0.5",
        )

        cut_off = sum(restarts.kill_times(RESTARTS, at_most_s=0.6))
        verdict = restarts.verdict()

    counts = Counter((each.ending, each.status) for each in restarts.sent)
    assert cut_off >= RESTARTS, "no stream outlasted a drain, so the test proves nothing"
    assert counts["cut", 200] == 0, "a started stream ended without an error event"
    # On a loaded machine a response may not have started although its upstream has the request.
    assert counts["error", 200] + counts["refused", 529] >= cut_off
    assert verdict.faults == {}
