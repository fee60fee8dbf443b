"""The whole gateway ended again and again under load: ``kill -9`` (G09), and restarts (G17).

``BRIDGE_TEST_GATEWAY_KILLS`` and ``BRIDGE_TEST_RESTARTS`` say how often;
``benchmarks/ledger_gateway_kills.py`` kills it 1,000 times under 200 streams.
"""

import os
import signal
from collections import Counter

import pytest

from tests.fakes.killing import Killing
from tests.fakes.upstream import ScriptedUpstream

KILLS = int(os.environ.get("BRIDGE_TEST_GATEWAY_KILLS", "100"))
RESTARTS = int(os.environ.get("BRIDGE_TEST_RESTARTS", "100"))
WITHIN_S = 6  # each, on a busy machine


@pytest.mark.timeout(240 + WITHIN_S * KILLS)
def test_no_request_is_lost_or_doubled_when_the_gateway_is_killed_again_and_again(tmp_path) -> None:
    with ScriptedUpstream() as player:
        killing = Killing(tmp_path / "gateway", player, streams=30)

        cut_off = sum(killing.lives(KILLS, at_most_s=0.6))
        verdict = killing.verdict()

        audit = killing.gateway.manage("verifyledger")
    assert cut_off >= KILLS, "nothing ran when the gateway was killed: the test proves nothing"
    assert len(verdict.dialled) >= KILLS
    assert verdict.faults == {}
    assert "everything is as it was written" in audit


@pytest.mark.timeout(240 + WITHIN_S * RESTARTS)
def test_no_stream_is_cut_without_a_word_when_the_gateway_is_restarted_again_and_again(
    tmp_path,
) -> None:
    with ScriptedUpstream() as player:
        restarting = Killing(
            tmp_path / "gateway", player, streams=20, how=signal.SIGTERM, BRIDGE_DRAIN_S="0.5"
        )

        cut_off = sum(restarting.lives(RESTARTS, at_most_s=0.6))
        verdict = restarting.verdict()

    ends = Counter((each.ending, each.status) for each in restarting.sent)
    assert cut_off >= RESTARTS, "nothing outlasted a drain: the test proves nothing"
    assert ends["cut", 200] == 0, "a stream that had begun ended without its error"
    # A busy machine may not have begun an answer when its upstream had been asked.
    assert ends["error", 200] + ends["refused", 529] >= cut_off
    assert verdict.faults == {}
