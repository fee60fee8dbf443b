"""kill -9 of the whole gateway under load; benchmarks/ledger_gateway_kills.py does it 100 times."""

import os

import pytest

from tests.fakes.killing import Killing
from tests.fakes.upstream import ScriptedUpstream

KILLS = int(os.environ.get("BRIDGE_TEST_GATEWAY_KILLS", "5"))


@pytest.mark.timeout(300)
def test_no_request_is_lost_or_doubled_when_the_gateway_is_killed_again_and_again(tmp_path) -> None:
    with ScriptedUpstream() as player:
        killing = Killing(tmp_path / "gateway", player, streams=30)

        cut_off = sum(killing.lives(KILLS))
        verdict = killing.verdict()

        audit = killing.gateway.manage("verifyledger")
    assert cut_off >= KILLS, "nothing ran when the gateway was killed: the test proves nothing"
    assert len(verdict.dialled) >= KILLS
    assert verdict.faults == {}
    assert "everything is as it was written" in audit
