"""Stored payloads change no element and no attribute of a page (T26)."""

import contextlib
import json
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from proxy.live.running_requests import RUNNING
from proxy.markdown_html import TAGS
from proxy.models import Upstream
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.admin.hostile import EXAMPLES, PAYLOADS, TESTED

from . import factories
from .live.live_fixtures import FakeRunningRequest

pytestmark = pytest.mark.django_db


class Outline(HTMLParser):
    """The elements with their attribute names, and the schemes of their URLs, without text.

    Rendered Markdown (``div.mb-markdown``) may have other elements for another text: they are not in
    ``seen``, and tests/proxy/admin/transcript/test_markdown.py checks them.
    """

    def __init__(self):
        super().__init__()
        self.seen = []
        self.addresses = set()
        self._depth_in_markdown = 0  # number of open ``div`` elements

    def handle_starttag(self, tag, attrs):
        if self._depth_in_markdown:
            self._depth_in_markdown += tag == "div"
            assert tag in TAGS
            return
        self._depth_in_markdown = int(("class", "mb-markdown") in attrs)
        self.seen.append((tag, tuple(sorted(name for name, _ in attrs))))
        for name, value in attrs:
            if name in {"href", "src", "action", "formaction"}:
                self.addresses.add((value or "").split(":", 1)[0].split("?", 1)[0].lower())

    def handle_endtag(self, tag):
        self._depth_in_markdown -= tag == "div" and self._depth_in_markdown > 0


def outline(answer):
    return outline_of(answer.content.decode())


def outline_of(html):
    parser = Outline()
    parser.feed(html)
    return parser


def with_text(text, **fixed):
    """Write an exchange with ``text`` in every text field; the number of blocks is fixed."""
    blocks = [
        {"type": "text", "text": text},
        {"type": "thinking", "thinking": text, "signature": text},
        {"type": "tool_use", "id": f"a{text}"[:90], "name": text, "input": {text: text}},
        {"type": "image", "source": {"type": "url", "url": text}},
        {"type": "document", "title": text, "source": {"type": "text", "data": text}},
        {"type": text, "anything": text},
    ]
    result = {"type": "tool_result", "tool_use_id": f"a{text}"[:90], "content": text}
    body = factories.request_body(
        model=text,
        system=[{"type": "text", "text": text}],
        tools=[{"name": text, "description": text, "input_schema": {text: text}}],
        messages=[
            {"role": "user", "content": text},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result, {"type": "text", "text": text}]},
        ],
    )
    clean_text = text.encode(errors="replace").decode().replace("\x00", "")
    short = clean_text[:38] or "x"
    # the gateway's decoder rejects unpaired surrogates, so no text column has them
    return factories.record(
        body=body if text == clean_text else factories.request_body(),
        answer=factories.answer_body(*blocks) if text == clean_text else factories.answer_body(),
        opening={
            "model_requested": clean_text[:200],
            "user": clean_text[:150],
            "session_id": clean_text[:200],
            "agent_id": clean_text[:200],
            "user_agent": clean_text[:300],
            "client_name": clean_text[:64],
            "client_version": clean_text[:32],
            "key_name": clean_text[:64],
            "tags": {short: clean_text},
            "traceparent": clean_text[:100],
        },
        closing={
            "outcome": "upstream_error",
            "status": 502,
            "error_type": short,
            "error_message": clean_text,
            "stop_reason": short,
            "model_upstream": clean_text[:200],
            "upstream": clean_text[:64],
            "attempts": [
                {
                    "upstream": clean_text,
                    "model": clean_text,
                    "status": 500,
                    "error": short,
                    "ms": 1,
                }
            ],
            "notes": [{"path": clean_text, "fate": short, "reason": clean_text}],
            "unknown_events": {clean_text: 1},
        },
        reads=((1.0, text.encode(errors="surrogatepass")),),
        failed=((500, text.encode(errors="surrogatepass")),),
        **fixed,
    )


def chat_of(text):
    """Return a stream of one delta, so that the sent stream has the text too."""
    delta = {"id": text, "object": "chat.completion.chunk", "model": text}
    choices = [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]
    return f"data: {json.dumps({**delta, 'choices': choices})}\n\n".encode()


TABS = ("conversation", "request", "upstream", "stream", "answer", "record")
REPLAY_TABS = ("sides", "sent", "replay")


def answered_with(text):
    """Write an exchange that can be replayed, with ``text`` in every text field."""
    clean_text = text.encode(errors="replace").decode().replace("\x00", "")
    target = {**factories.TARGET, "dialect": "chat", "profile": "generic", "model": clean_text}
    return factories.record(
        body=factories.request_body(
            stream=True,
            system=clean_text,
            messages=[{"role": "user", "content": clean_text or "x"}],
        ),
        answer=factories.answer_body({"type": "text", "text": f"other {clean_text}"}),
        closing={"target": target, "stop_reason": "end_turn"},
        reads=((1.0, chat_of(clean_text)),),
    )


def pages_of(exchange, replayed):
    """Return the URLs of all pages that show these exchanges."""
    session = f"/admin/sessions/one/?{urlencode({'id': exchange.session_id})}"
    return [
        "/admin/proxy/exchange/",
        *(f"/admin/proxy/exchange/{exchange.pk}/change/?tab={tab}" for tab in TABS),
        *(f"/admin/proxy/exchange/{replayed.pk}/change/?tab={tab}" for tab in REPLAY_TABS),
        "/admin/sessions/?day=2026-11-20",
        session,
        f"{session}&tab=words",
        "/admin/live/",
    ]


@contextlib.contextmanager
def running_beside(text):
    """Add a running request with ``text`` in every text field."""
    words = dict.fromkeys(
        ("team", "key", "user", "client", "session", "agent", "model", "upstream",
         "upstream_model", "state"), text.encode(errors="replace").decode().replace("\x00", ""),
    )  # fmt: skip
    RUNNING["req_hostile"] = FakeRunningRequest("req_hostile", **words)
    try:
        yield
    finally:
        del RUNNING["req_hostile"]


@pytest.mark.repeated
@pytest.mark.timeout(600)  # in the slow lane a hundred payloads on each of sixteen pages
@pytest.mark.parametrize("some", [TESTED[n::10] for n in range(min(10, len(TESTED)))])
def test_hostile_text_changes_no_element_no_attribute_and_no_address(root, some):
    harmless, replayed = with_text("plain words"), answered_with("plain words")
    with running_beside("plain words"):
        expected = [outline(root.get(url)) for url in pages_of(harmless, replayed)]
    harmless.delete()
    replayed.delete()

    for payload in some:
        exchange, replayed = with_text(payload), answered_with(payload)
        for url, plain in zip(pages_of(exchange, replayed), expected, strict=True):
            with running_beside(payload):
                answer = root.get(url)
            found = outline(answer)
            assert answer.status_code == 200, (url, payload)
            if payload.encode(errors="replace").decode().replace("\x00", "") == payload:
                assert found.seen == plain.seen, (url, payload)
            assert not found.addresses & {"javascript", "data", "//evil.example"}, (url, payload)
        exchange.delete()
        replayed.delete()


def test_there_are_at_least_a_hundred_payloads_of_which_some_are_examples():
    assert len({*PAYLOADS}) >= 100
    assert {*EXAMPLES} < {*PAYLOADS}


def test_a_hostile_response_of_a_tested_upstream_changes_no_element(root):
    """All payloads at once in an error message: in the response and in the result."""
    with ScriptedUpstream() as scripted:
        upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url=scripted.base_url)
        url = f"/admin/proxy/upstream/{upstream.pk}/test/"
        outlines = []
        for model, text in (("m1", "plain words"), ("m2", "\n".join(PAYLOADS))):
            body = json.dumps({"error": {"message": text, "type": text[:100]}}).encode()
            scripted.on(model, json_response(body, status=400))
            outlines.append(outline(root.post(url, {"model": model})).seen)

    assert outlines[0] == outlines[1]


def test_pages_forbid_other_origins_and_inline_code(root):
    exchange = factories.record(opening={"session_id": "s"})

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
    exchange = factories.record(body=factories.request_body(system="<script>1</script>"))
    base = f"/admin/proxy/exchange/{exchange.pk}"

    part = root.get(f"{base}/part/?path=system")
    body = root.get(f"{base}/body/request/")

    assert part.content == b"<script>1</script>"
    assert part["Content-Type"] == "text/plain; charset=utf-8"
    assert "sandbox" in part["Content-Security-Policy"]
    assert part["X-Content-Type-Options"] == "nosniff"
    assert body["Content-Disposition"].startswith("attachment")


def test_unpaired_surrogates_and_invisible_characters_become_visible():
    from proxy.admin.transcript.conversation import read_conversation

    conversation = read_conversation(
        {"messages": [{"role": "user", "content": "a\ud800b\x00\u202e"}]}, None
    )

    assert conversation.turns[0].blocks[0].text.shown == "a\\ud800b[U+0000][U+202E]"
