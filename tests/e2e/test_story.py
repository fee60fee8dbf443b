"""A story told by a seed: requests, cuts, clients that leave, kills, a locked database, drains.

Whatever happens in whatever order, the books agree with what clients and upstream saw (I1 to I5).
The story is the same for the same seed: ``BRIDGE_TEST_STORIES=100 BRIDGE_TEST_STORY_SEED=7``.
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

from tests.fakes.crashing import Nursery
from tests.fakes.crowd import SESSION, Sent, _judged, chat_answer, judge, number_of
from tests.fakes.killing import config_for, held_port
from tests.fakes.steps import Reset, Sleep
from tests.fakes.upstream import ScriptedUpstream
from tests.threats import wire

STORIES = int(os.environ.get("BRIDGE_TEST_STORIES", "1"))
FIRST = int(os.environ.get("BRIDGE_TEST_STORY_SEED", "1"))
STEPS = 24


class Story:
    def __init__(self, folder, player, port, seed):
        self.chance = random.Random(seed)  # noqa: S311 - seeded on purpose
        self.player = player
        self.numbers = itertools.count(1)
        self.sent, self.cut = [], set()
        self.gateway = Nursery(folder, config=config_for(player), port=port)
        self.lock = None
        self.told = []
        player.choose(self.answer)

    def answer(self, asked):
        steps = [step for step in chat_answer(asked) if not isinstance(step, Sleep)]
        number = number_of(asked)
        if number in self.cut:
            return [*steps[: len(steps) // 2], Sleep(0.02), Reset()]
        return steps

    # What may happen

    def send(self, *, leave=False, cut=False):
        number = next(self.numbers)
        if cut:
            self.cut.add(number)
        said = wire.question(
            model="crowd",
            stream=True,
            messages=[{"role": "user", "content": f"This is request number {number}."}],
        )
        head = wire.post(self.gateway.key, said, f"content-length: {len(said)}",
                         "connection: close", f"x-claude-code-session-id: {SESSION}{number}")  # fmt: skip
        with contextlib.suppress(OSError):
            heard = wire.say(self.gateway.port, head, silence_s=0.0 if leave else 20.0)
            self.sent.append(Sent(number, *_judged(heard.raw), heard.raw))

    def leave(self):
        self.send(leave=True)

    def cut_off(self):
        self.send(cut=True)

    def several(self):
        for _ in range(self.chance.randint(2, 6)):
            self.send()

    def kill(self):
        self.gateway.kill()
        self.live()

    def drain(self):
        self.database_up()  # a drain waits ten seconds for it
        self.gateway.kill(signal.SIGTERM)
        self.live()

    def database_down(self):
        if self.lock is None:
            database = self.gateway.folder / "data" / "ledger.sqlite3"
            self.lock = sqlite3.connect(database, isolation_level=None, timeout=30)
            self.lock.execute("BEGIN EXCLUSIVE")

    def database_up(self):
        if self.lock is not None:
            self.lock.execute("ROLLBACK")
            self.lock.close()
            self.lock = None

    def stall(self):
        os.kill(self.gateway.pid, signal.SIGSTOP)
        time.sleep(0.1)  # the fault itself
        os.kill(self.gateway.pid, signal.SIGCONT)

    HAPPENINGS = (
        send,
        several,
        several,
        leave,
        cut_off,
        cut_off,
        kill,
        drain,
        database_down,
        database_up,
        stall,
    )

    def live(self):
        """The next life; a start writes to the database, so that is there."""
        self.database_up()
        self.gateway.live(None)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert not self.gateway.ended(0.05), self.gateway.log
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.gateway.ask("GET", "/readyz").status == 200:
                    return
        raise AssertionError(self.gateway.log)

    def tell(self):
        self.gateway.begin()
        try:
            self.live()
            for _ in range(STEPS):
                happening = self.chance.choice(self.HAPPENINGS)
                self.told.append(happening.__name__)
                happening(self)
            self.database_up()
            deadline = time.monotonic() + 60
            while json.loads(self.gateway.ask("GET", "/readyz").body)["backlog"]:
                assert time.monotonic() < deadline, "the backlog never fell to nothing"
                time.sleep(0.1)
        finally:
            self.gateway.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORIES))
def test_whatever_happens_the_books_are_right(tmp_path, seed):
    with ScriptedUpstream() as player, held_port() as port:
        story = Story(tmp_path / "gateway", player, port, seed)
        story.tell()
        player.wait_until(lambda asked: all(each.ending for each in asked))
        rows = story.gateway.rows()
        verdict = judge(story.sent, player.asked, rows.values())
        audit = story.gateway.manage("verifyledger")

    by_number = {
        int(row["session_id"].removeprefix(SESSION)): row
        for row in rows.values()
        if row["session_id"]
    }
    assert verdict.faults == {}, story.told
    assert "everything is as it was written" in audit
    assert not {by_number[n]["outcome"] for n in story.cut if n in by_number} & {"completed"}
    endings = {sent.number: sent.ending for sent in story.sent}
    assert not [n for n, ending in endings.items() if ending == "whole" and n in story.cut], (
        story.told
    )
    assert len(verdict.sent) > STEPS / 6
