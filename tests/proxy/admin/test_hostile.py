"""Whatever was stored, the pages' elements and attributes are those of harmless text (T26)."""

import contextlib
import json
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from proxy.live.running import RUNNING
from proxy.models import Upstream
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.admin import cast
from tests.proxy.admin.hostile import PAYLOADS
from tests.proxy.admin.live_world import Still

pytestmark = pytest.mark.django_db


class Outline(HTMLParser):
    """Elements with their attribute names, and the addresses they lead to: no text."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.addresses = set()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, tuple(sorted(name for name, _ in attrs))))
        for name, value in attrs:
            if name in {"href", "src", "action", "formaction"}:
                self.addresses.add((value or "").split(":", 1)[0].split("?", 1)[0].lower())


def outline(answer):
    parser = Outline()
    parser.feed(answer.content.decode())
    return parser


def with_text(text, **fixed):
    """One exchange in which every stored text is ``text``; the number of blocks is fixed."""
    blocks = [
        {"type": "text", "text": text},
        {"type": "thinking", "thinking": text, "signature": text},
        {"type": "tool_use", "id": f"a{text}"[:90], "name": text, "input": {text: text}},
        {"type": "image", "source": {"type": "url", "url": text}},
        {"type": "document", "title": text, "source": {"type": "text", "data": text}},
        {"type": text, "anything": text},
    ]
    result = {"type": "tool_result", "tool_use_id": f"a{text}"[:90], "content": text}
    body = cast.request_body(
        model=text,
        system=[{"type": "text", "text": text}],
        tools=[{"name": text, "description": text, "input_schema": {text: text}}],
        messages=[
            {"role": "user", "content": text},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result, {"type": "text", "text": text}]},
        ],
    )
    surrogate_free = text.encode(errors="replace").decode().replace("\x00", "")
    short = surrogate_free[:38] or "x"
    # what reaches a text column passed the gateway's decoder, which refuses lone surrogates
    return cast.record(
        body=body if text == surrogate_free else cast.request_body(),
        answer=cast.answer_body(*blocks) if text == surrogate_free else cast.answer_body(),
        opening={
            "model_requested": surrogate_free[:200],
            "user": surrogate_free[:150],
            "session_id": surrogate_free[:200],
            "agent_id": surrogate_free[:200],
            "user_agent": surrogate_free[:300],
            "client_name": surrogate_free[:64],
            "client_version": surrogate_free[:32],
            "key_name": surrogate_free[:64],
            "tags": {short: surrogate_free},
            "traceparent": surrogate_free[:100],
        },
        closing={
            "outcome": "upstream_error",
            "status": 502,
            "error_type": short,
            "error_message": surrogate_free,
            "stop_reason": short,
            "model_upstream": surrogate_free[:200],
            "upstream": surrogate_free[:64],
            "attempts": [
                {
                    "upstream": surrogate_free,
                    "model": surrogate_free,
                    "status": 500,
                    "error": short,
                    "ms": 1,
                }
            ],
            "notes": [{"path": surrogate_free, "fate": short, "reason": surrogate_free}],
            "unknown_events": {surrogate_free: 1},
        },
        reads=((1.0, text.encode(errors="surrogatepass")),),
        failed=((500, text.encode(errors="surrogatepass")),),
        **fixed,
    )


def chat_of(text):
    """A stream of one delta, so that what is sent of it is hostile too."""
    delta = {"id": text, "object": "chat.completion.chunk", "model": text}
    choices = [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]
    return f"data: {json.dumps({**delta, 'choices': choices})}\n\n".encode()


TABS = ("conversation", "request", "upstream", "stream", "answer", "record")
AGAIN = ("sides", "sent", "replay")  # what is translated again


def answered_with(text):
    """An exchange that can be translated again, and says ``text`` wherever one can."""
    words = text.encode(errors="replace").decode().replace("\x00", "")
    target = {**cast.TARGET, "dialect": "chat", "profile": "generic", "model": words}
    return cast.record(
        body=cast.request_body(
            stream=True, system=words, messages=[{"role": "user", "content": words or "x"}]
        ),
        answer=cast.answer_body({"type": "text", "text": f"other {words}"}),
        closing={"target": target, "stop_reason": "end_turn"},
        reads=((1.0, chat_of(words)),),
    )


def pages_of(exchange, again):
    """Every page that shows something of these; one of its kind runs meanwhile."""
    session = f"/admin/sessions/one/?{urlencode({'id': exchange.session_id})}"
    return [
        "/admin/proxy/exchange/",
        *(f"/admin/proxy/exchange/{exchange.pk}/change/?tab={tab}" for tab in TABS),
        *(f"/admin/proxy/exchange/{again.pk}/change/?tab={tab}" for tab in AGAIN),
        "/admin/sessions/?day=2026-11-20",
        session,
        f"{session}&tab=words",
        "/admin/live/",
    ]


@contextlib.contextmanager
def running_beside(text):
    """A running request whose every word is ``text``."""
    words = dict.fromkeys(
        ("team", "key", "user", "client", "session", "agent", "model", "upstream",
         "upstream_model", "state"), text.encode(errors="replace").decode().replace("\x00", ""),
    )  # fmt: skip
    RUNNING["req_hostile"] = Still("req_hostile", **words)
    try:
        yield
    finally:
        del RUNNING["req_hostile"]


@pytest.mark.timeout(600)  # a hundred payloads on each of thirteen pages
@pytest.mark.parametrize("some", [PAYLOADS[n::10] for n in range(10)], ids=range(10))
def test_hostile_text_changes_no_element_no_attribute_and_no_address(root, some):
    harmless, again = with_text("plain words"), answered_with("plain words")
    with running_beside("plain words"):
        expected = [outline(root.get(url)) for url in pages_of(harmless, again)]
    harmless.delete()
    again.delete()

    for payload in some:
        exchange, again = with_text(payload), answered_with(payload)
        for url, wanted in zip(pages_of(exchange, again), expected, strict=True):
            with running_beside(payload):
                answer = root.get(url)
            found = outline(answer)
            assert answer.status_code == 200, (url, payload)
            if payload.encode(errors="replace").decode().replace("\x00", "") == payload:
                assert found.seen == wanted.seen, (url, payload)
            assert not found.addresses & {"javascript", "data", "//evil.example"}, (url, payload)
        exchange.delete()
        again.delete()


def test_there_are_a_hundred_payloads():
    assert len({*PAYLOADS}) >= 100


def test_what_a_tested_upstream_answers_changes_nothing_either(root):
    """All payloads at once, in the error's text: as heard, as told and as the verdict."""
    with ScriptedUpstream() as scripted:
        upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url=scripted.base_url)
        url = f"/admin/proxy/upstream/{upstream.pk}/test/"
        outlines = []
        for model, text in (("m1", "plain words"), ("m2", "\n".join(PAYLOADS))):
            body = json.dumps({"error": {"message": text, "type": text[:100]}}).encode()
            scripted.on(model, json_answer(body, status=400))
            outlines.append(outline(root.post(url, {"model": model})).seen)

    assert outlines[0] == outlines[1]


def test_our_pages_forbid_everything_that_is_not_ours(root):
    exchange = cast.record(opening={"session_id": "s"})

    for url in pages_of(exchange, exchange):
        answer = root.get(url)
        policy = answer["Content-Security-Policy"]
        page = answer.content.decode()
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "<style" not in page
        assert " style=" not in page
        assert "<script>" not in page
        assert "no-store" in answer["Cache-Control"]


def test_a_block_is_served_as_text_and_a_body_as_a_download(root):
    exchange = cast.record(body=cast.request_body(system="<script>1</script>"))
    base = f"/admin/proxy/exchange/{exchange.pk}"

    part = root.get(f"{base}/part/?path=system")
    body = root.get(f"{base}/body/request/")

    assert part.content == b"<script>1</script>"
    assert part["Content-Type"] == "text/plain; charset=utf-8"
    assert "sandbox" in part["Content-Security-Policy"]
    assert part["X-Content-Type-Options"] == "nosniff"
    assert body["Content-Disposition"].startswith("attachment")


def test_lone_surrogates_and_nul_do_not_break_the_page():
    from proxy.admin.conversation import read_conversation

    talk = read_conversation({"messages": [{"role": "user", "content": "a\ud800b\x00"}]}, None)

    assert talk.turns[0].blocks[0].text.shown == "a\\ud800b\N{SYMBOL FOR NULL}"
