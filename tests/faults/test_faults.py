"""Every fault of the catalogue that can be played, on both databases; see ``catalogue.py``."""

import random
import re
from typing import NamedTuple

import pytest

from tests.fakes.gateway import Reply
from tests.fakes.grammar import faults_of_bytes

from . import stories
from .catalogue import Case, Fault, Play, cases_of, played_faults
from .client import LyingClient, usual_request
from .company import retold
from .ledger import Row
from .plays import GATE, TEXTS, ends_well, turns
from .world import FAILURES, World, assert_honest, usage_of

LEFT = {"gone", "closed"}


class Played(NamedTuple):
    """One case that was played, and what its client heard."""

    case: Case
    model: str
    reply: Reply | None

    @property
    def accepted(self) -> int:
        """Rows that there must be."""
        return 0 if self.case.play.row == "none" else self.case.play.row.count(",") + 1

    def owns(self, row: Row) -> bool:
        """By the id that the client saw; a client that saw none had at least named its model."""
        if self.reply is not None and row["id"] == self.reply.headers.get("request-id"):
            return True
        return bool(row["model_requested"] == self.model)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("fault", played_faults(), ids=lambda fault: fault.number)
def test_fault(world: World, fault: Fault) -> None:
    world.mark()
    limit = min((play.rss_mb for play in fault.plays if play.rss_mb is not None), default=None)
    before = world.peak_reset() if limit is not None else 0

    played = [play(world, case) for case in cases_of(fault)]

    assert_all_well(world, played)
    if limit is not None:
        grown = (world.peak() - before) / 1024
        assert grown < limit, f"{grown:.0f} MB more"


def assert_all_well(world: World, played: list[Played]) -> None:
    """The world after them, and the rows and the upstream's tally of each."""
    rows = world.assert_world(accepted=sum(each.accepted for each in played))
    for each in played:
        own = [row for row in rows if each.owns(row)]
        assert_rows(each.case, own)
        assert_dialled(each, own, world)


def play(world: World, case: Case, chance: random.Random | None = None) -> Played:
    """Play it, and judge what its client sees at once; ``chance`` decides how bytes are cut."""
    play = case.play
    model = f"{play.route}-{case.dialect}-{case.id}"
    GATE.clear()
    scripts = turns(play.upstream, case.dialect)
    if chance is not None:
        scripts = [retold(script, chance) for script in scripts]
    world.upstream_of(play.route).on(model, *scripts)
    client = LyingClient(
        world.gateway.port,
        world.secret_of(play.key),
        play.body.encode("latin-1") or usual_request(model, case.ask, play.request),
        play.send,
        chance=chance,
    )
    if play.story:
        stories.STORIES[play.story](world, case, client, model)
    else:
        with client:
            client.play(play.client)
    try:
        assert_seen(play, case, client.reply)
    except AssertionError as error:
        raise AssertionError(f"{case.id}: {error}") from error
    return Played(case, model, client.reply)


def assert_seen(play: Play, case: Case, reply: Reply | None) -> None:
    """What the client got is what the catalogue says (I3)."""
    if play.sees == "judged":
        return
    if play.sees in LEFT:
        assert reply is None, reply
        return
    assert reply is not None, "the connection ended before an answer"
    assert reply.headers["request-id"] == reply.headers["x-bridge-request-id"]
    for name, value in play.headers.items():
        assert reply.headers.get(name, "") == value, (name, reply)
    if play.sees == "whole":
        _assert_whole(play, case, reply)
    elif play.sees.startswith("error "):
        _assert_broken_off(play, reply)
    else:
        _assert_refused(play, reply)


def _assert_whole(play: Play, case: Case, reply: Reply) -> None:
    assert reply.status == 200, reply.body
    if case.ask == "whole":
        message = stories.json_of(reply)
        assert message["type"] == "message"
        told = "".join(block.get("text", "") for block in message["content"])
        reason = message["stop_reason"]
    else:
        reply = reply._replace(body=as_ours(reply.body))
        assert faults_of_bytes(reply.body, raw_tool_input=True) == []
        assert stories.kinds(reply)[-1] == "message_stop"
        told, reason = stories.text(reply), stories.stop_reason(reply)
        assert not play.pings or "ping" in stories.kinds(reply)
    assert told == said(play), told[:200]
    assert reason == (play.stop_reason or "end_turn")


def _assert_broken_off(play: Play, reply: Reply) -> None:
    """A block that was open is closed, then the error; nothing pretends to be an end."""
    assert reply.status == 200, reply.body
    assert faults_of_bytes(reply.body) == []
    kinds = stories.kinds(reply)
    assert kinds[-1] == "error"
    assert not {"message_delta", "message_stop"} & set(kinds)
    error = stories.events(reply)[-1]
    assert error["error"]["type"] == play.sees.partition(" ")[2]
    assert error.get("request_id", "") in {reply.headers["request-id"], ""}
    assert play.says in error["error"]["message"]
    assert stories.text(reply) == said(play, "")
    assert not play.pings or "ping" in kinds


def as_ours(body: bytes) -> bytes:
    """Other legal spellings of a stream, which are handed on from an Anthropic upstream."""
    body = re.sub(rb"\r\n|\r", b"\n", body.removeprefix(b"\xef\xbb\xbf"))
    body = re.sub(rb"(?m)^: .*\n\n", b"", body)
    body = re.sub(rb"(?m)^data: \{\ndata: ", b"data: {", body)
    return re.sub(rb"(?m)^data:(?! )", b"data: ", body)


def said(play: Play, usually: str = "".join(TEXTS)) -> str:
    """What the answer must have said."""
    if play.letters is not None:
        return "w" * play.letters
    if isinstance(play.texts, int):
        return "".join(TEXTS[: play.texts])
    return usually if play.text is None else play.text


def _assert_refused(play: Play, reply: Reply) -> None:
    status, _, kind = play.sees.partition(" ")
    assert reply.status == int(status), (reply.status, reply.body[:500])
    assert reply.headers["content-type"] == "application/json"
    body = stories.json_of(reply)
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"] == reply.headers["request-id"]
    assert body["error"]["type"] == kind
    message = body["error"]["message"]
    assert play.says in message
    assert len(message) <= 500
    assert not re.search(r"<|127\.0\.0\.1|https?://|sk-", message), message


def assert_rows(case: Case, rows: list[Row]) -> None:
    """``row`` is one line for each row: ``outcome/status/usage/attempts``."""
    play = case.play
    if play.row == "none":
        assert not rows, (case.id, rows)
        return
    told = [f"{r['outcome']}/{r['status']}/{usage_of(r)}/{len(r['attempts'])}" for r in rows]
    why = [(row["detail"], row["error_message"]) for row in rows]
    assert told == play.row.split(", "), (case.id, why)
    has = {name: rows[-1][name] for name in play.row_has}
    assert has == play.row_has, case.id
    for row in rows:
        assert_honest(row, well=ends_well(play.upstream), tokens=play.tokens)
        if row["outcome"] in FAILURES:
            assert row["error_type"], case.id
            assert row["error_source"] in {"upstream", "gateway"}, case.id


def assert_dialled(each: Played, rows: list[Row], world: World) -> None:
    """The upstream's own tally (I2)."""
    wanted = each.case.play.dialled
    if wanted is None:
        wanted = sum(len(row["attempts"]) for row in rows)
    asked = [one for one in world.asked() if one.model == each.model]
    assert len(asked) == wanted, (each.case.id, [one.path for one in asked])
