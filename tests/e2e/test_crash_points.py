"""The gateway ends at every labelled point, and the record's promises hold at each (P04).

On each push every thirteenth point; ``BRIDGE_TEST_CRASH_POINTS=all`` is all of them.
"""

import itertools
import json
import os
import time

import pytest

from tests.fakes.crashing import CRASHES, Nursery
from tests.fakes.crowd import Crowd, chat_answer, judge
from tests.fakes.killing import config_for, held_port, ready
from tests.fakes.steps import Sleep
from tests.fakes.upstream import ScriptedUpstream

CHOSEN = CRASHES if os.environ.get("BRIDGE_TEST_CRASH_POINTS") == "all" else CRASHES[::13]
LIFE_S = 6.0  # for a point that may not come
REACHED_S = 60.0  # for one that must: it ends the life at once
RARE = {
    "tidy",
    "forget",
    "mark",
    "_closing",
    "_left_behind",
    "take",
    "load_snapshot",
    "_round",
    "renew",
}
"""Points of a start, or of once in a while: a life may end before they come a third time."""


def is_rare(crash):
    return crash.place.split(":")[1].split(".")[-1] in RARE


def quick(asked):
    return [step for step in chat_answer(asked) if not isinstance(step, Sleep)]


@pytest.mark.timeout(240 + 24 * len(CHOSEN))
def test_nothing_is_lost_or_doubled_wherever_the_process_ends(tmp_path):
    numbers = itertools.count(1)
    sent, unreached = [], []
    with ScriptedUpstream() as player, held_port() as port:
        player.choose(quick)
        gateway = Nursery(tmp_path / "gateway", config=config_for(player), port=port)
        gateway.begin()
        try:
            for crash in CHOSEN:
                gateway.live(crash)
                if ready(gateway, 60):
                    with Crowd(
                        gateway.port, gateway.key, "crowd", 3, numbers, pause_s=0.02
                    ) as crowd:
                        if not gateway.ended(LIFE_S if is_rare(crash) else REACHED_S):
                            unreached.append(crash)
                            gateway.kill()
                    sent += crowd.sent
            gateway.live(None)
            assert ready(gateway, 60), gateway.log
            deadline = time.monotonic() + 60
            while json.loads(gateway.ask("GET", "/readyz").body)["backlog"]:
                assert time.monotonic() < deadline, "the backlog never fell to nothing"
                time.sleep(0.1)
        finally:
            gateway.close()
        player.wait_until(lambda asked: all(each.ending for each in asked))
        verdict = judge(sent, player.asked, gateway.rows().values())
        audit = gateway.manage("verifyledger")

    assert len(verdict.dialled) > len(CHOSEN)
    assert verdict.faults == {}
    assert "everything is as it was written" in audit
    assert [crash.label for crash in unreached if not is_rare(crash)] == []
