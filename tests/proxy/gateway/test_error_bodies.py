"""What an upstream says instead of an answer is kept as it came: failures need the body most."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.gateway.upstream import ERROR_BODY_BYTES
from proxy.models import ApiKey, Team
from proxy.record.conversation import MOST_FAILED_BYTES
from proxy.record.replaying import CannotReplay, compare
from proxy.record.transcripts import StoredTranscript, read
from tests.fakes.steps import LAST_CHUNK, Script, answer, html_answer, json_answer
from tests.fakes.upstream import Asked, ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import DIALECTS, UPSTREAM_SECRET, add_route, add_upstream, message, row

ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy é", "extra": [1]}}
STARS = "*" * len(UPSTREAM_SECRET)


def kept_of(request_id: str, **expected: Any) -> StoredTranscript:
    row(request_id, **expected)
    kept = read(request_id)
    assert kept is not None
    return kept


def told_of(kept: StoredTranscript) -> list[tuple[int, str, int]]:
    return [(each.number, each.upstream, each.status) for each in kept.failed]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "script",
    [json_answer(ERROR, 529), html_answer(502), json_answer(ERROR, 401), html_answer(206)],
    ids=["529", "page", "401", "206"],
)
def test_an_error_s_body_is_kept_byte_for_byte_and_is_no_stream(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str, script: Script
):
    scripted.on(f"{dialect}-errs", script)

    reply = gateway.post(message(f"{dialect}-errs", stream=True))

    kept = kept_of(reply.id, outcome="upstream_error")
    sent = scripts.answered(script)
    assert kept.upstream_body == sent.partition(b"\r\n\r\n")[2]
    assert kept.upstream_reads == []
    status = int(sent.split()[1])
    assert told_of(kept) == [(0, dialect, status)]
    with pytest.raises(CannotReplay, match=f"answered with status {status}"):
        compare(kept)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_our_key_in_an_error_s_body_is_stars_also_where_the_bound_cuts_it(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str
):
    words = f"{{{UPSTREAM_SECRET}}} "
    until = "x" * (ERROR_BODY_BYTES - len(words) - 12)  # twelve letters of the key are within
    body = f"{words}{until}{UPSTREAM_SECRET} and more".encode()
    scripted.on(f"{dialect}-tells", answer(500, body, "text/plain"))

    reply = gateway.post(message(f"{dialect}-tells"))

    kept = kept_of(reply.id, outcome="upstream_error").upstream_body
    assert kept.decode() == f"{{{STARS}}} {until}{'*' * 12}"
    assert len(kept) == ERROR_BODY_BYTES == MOST_FAILED_BYTES


def test_a_page_that_comes_as_an_answer_is_kept_as_one(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("chat-page-200", html_answer(200))

    reply = gateway.post(message("chat-page-200"))

    kept = kept_of(reply.id, outcome="upstream_error", detail="bad_type")
    assert kept.upstream_body.startswith(b"<!DOCTYPE html>")
    assert compare(kept).again.events[-1]["type"] == "error"


@pytest.fixture
def routed(gateway: Browser, scripted: ScriptedUpstream, reload) -> Iterator[Callable[..., None]]:
    """A route ``fall-*`` to the upstreams ``a`` and ``b``, and what each of them says."""
    upstreams = [add_upstream(n, "chat", f"{scripted.url}/{n}") for n in ("a", "b")]
    route = add_route("fall-*", *upstreams)
    reload()

    def play(a: Script, b: Script) -> None:
        def said(asked: Asked) -> Script | None:
            return {"a": a, "b": b}.get(asked.path.split("/")[1])

        scripted.choose(said)

    yield play
    scripted.choose(lambda _: None)
    route.delete()
    for upstream in upstreams:
        upstream.delete()
    reload()


@pytest.mark.parametrize("streaming", [True, False])
def test_the_first_one_s_error_is_kept_and_the_second_one_s_stream_is_unspoiled(
    gateway: Browser, routed: Callable[..., None], streaming: bool
):
    busy = html_answer(503)
    routed(busy, scripts.chat())

    reply = gateway.post(message("fall-good", stream=streaming))

    kept = kept_of(reply.id, outcome="completed", upstream="b")
    assert kept.upstream_body == b"".join(scripts.chat_events())
    assert told_of(kept) == [(0, "a", 503)]
    assert kept.failed[0].body.text == scripts.answered(busy).partition(b"\r\n\r\n")[2]
    assert compare(kept, row(reply.id).request_bytes).same


def test_each_one_s_error_is_kept(gateway: Browser, routed: Callable[..., None]):
    routed(json_answer({"error": {"message": "first"}}, 503), json_answer({"error": "second"}, 500))

    reply = gateway.post(message("fall-bad"))

    kept = kept_of(reply.id, outcome="upstream_error", upstream="b")
    assert told_of(kept) == [(0, "a", 503), (1, "b", 500)]
    assert kept.upstream_body == b'{"error": "second"}'
    assert b"first" in kept.failed[0].body.text


def test_a_stream_that_failed_is_not_taken_for_the_next_one_s(
    gateway: Browser, routed: Callable[..., None]
):
    broken = [scripts.sse({"error": {"message": "overloaded", "code": 529}})]
    routed(scripts.pieces(broken, LAST_CHUNK), json_answer({"error": "second"}, 500))

    reply = gateway.post(message("fall-worse", stream=True))

    kept = kept_of(reply.id, outcome="upstream_error", upstream="b")
    assert told_of(kept) == [(0, "a", 200), (1, "b", 500)]
    assert kept.failed[0].body.text == broken[0]
    assert kept.upstream_reads == []


def test_what_was_refused_before_the_request_was_mended_is_kept(
    gateway: Browser, scripted: ScriptedUpstream
):
    error = {"message": "Unsupported parameter: 'top_p'", "code": "unsupported_parameter",
             "param": "top_p"}  # fmt: skip
    scripted.on("chat-mends", json_answer({"error": error}, 400), scripts.chat())

    reply = gateway.post(message("chat-mends", top_p=0.5, stream=True))

    kept = kept_of(reply.id, outcome="completed")
    assert told_of(kept) == [(0, "chat", 400)]
    assert json.loads(kept.failed[0].body.text) == {"error": error}
    assert kept.upstream_body == b"".join(scripts.chat_events())


def test_who_keeps_no_words_keeps_none_of_an_error(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    team = Team.objects.create(name="wordless", store="metadata")
    _, secret = ApiKey.issue(team, "quiet", scopes=["messages"])
    reload()
    scripted.on("chat-wordless", json_answer(ERROR, 529))

    reply = gateway.post(message("chat-wordless"), x_api_key=secret)

    row(reply.id, outcome="upstream_error", upstream_status=529)
    assert read(reply.id) is None
