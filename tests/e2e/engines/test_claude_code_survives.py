"""Claude Code survives what upstreams refuse and send; each test is a kind of public reports.

Only the far side is scripted: an upstream that refuses a part of the request as the real server
does, or that sends a stream as other servers do.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fakes import pdfs
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import Script, json_response, stream
from tests.fakes.upstreams.scripted_agent import Call, Plan, ScriptedAgent, responses_events
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream

from . import claude_code

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
UPSTREAMS = {
    "responses-openai": ("responses", "openai"),
    "responses-vllm": ("responses", "vllm"),
    "chat-openai": ("chat", "openai"),
    "chat-generic": ("chat", "generic"),
    "chat-vllm": ("chat", "vllm"),
    "anthropic-generic": ("anthropic", "generic"),
}
"""Upstream -> its dialect and profile. The model that Claude Code asks for is the upstream's name
and the test's own word, so that nothing is learnt from another test."""

Rule = Callable[[dict[str, Any]], str | None]
"""Returns the error message with which the upstream refuses a request body, or None."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(upstream, tmp_path_factory) -> Iterator[Gateway]:
    upstreams = {
        name: {
            "dialect": dialect,
            "base_url": upstream.url if dialect == "anthropic" else upstream.base_url,
            "profile": profile,
        }
        for name, (dialect, profile) in UPSTREAMS.items()
    }
    routes = "".join(
        f'\n[[routes]]\nmodel = "{name}-*"\ntargets = [{{ upstream = "{name}" }}]\n'
        for name in UPSTREAMS
    )
    config = toml_for(upstreams, routes)
    with Gateway(tmp_path_factory.mktemp("survival-gateway"), config=config) as running:
        yield running


@pytest.fixture
def session(claude, gateway, tmp_path):
    """A function that runs a prompt of Claude Code in one folder and home."""

    def run(prompt: str, *options: str, **more: Any) -> claude_code.Run:
        options = ("--allowedTools", "Bash,Read", *options)
        return claude_code.run(claude, gateway.url, tmp_path, prompt, *options, **more)

    return run


class Refusing:
    """A scripted agent behind a server that refuses some requests with status 400."""

    def __init__(self, agent: ScriptedAgent, *rules: Rule) -> None:
        self.agent = agent
        self.rules = rules
        self.refusals: list[str] = []
        self.accepted: list[dict[str, Any]] = []

    def __call__(self, request: ReceivedRequest) -> Script | None:
        if not request.path.endswith(("/responses", "/chat/completions")):
            return self.agent(request)
        for rule in self.rules:
            if message := rule(request.json):
                self.refusals.append(message)
                error = {"message": message, "type": "invalid_request_error", "code": None}
                return json_response({"error": error}, 400)
        self.accepted.append(request.json)
        return self.agent(request)


def answering(word: str, text: str) -> ScriptedAgent:
    return ScriptedAgent([Plan(word, (), lambda _: text)])


def assert_success(done: claude_code.Run, text: str) -> None:
    assert done.succeeded, f"{done.text} {done.errors}"
    assert text in done.text


# Kind 1: the server refuses what the gateway added


def refuses_include(body: dict[str, Any]) -> str | None:
    if body.get("include"):
        return "Encrypted content is not supported with this model."
    return None


def refuses_effort(body: dict[str, Any]) -> str | None:
    names = [f"reasoning.{name}" for name in sorted(body.get("reasoning") or {})]
    names += ["reasoning_effort"] * ("reasoning_effort" in body)
    if names:
        return f"Unsupported parameter: '{names[0]}' is not supported with this model."
    return None


def refuses_cache_key(body: dict[str, Any]) -> str | None:
    return "Unknown parameter: 'prompt_cache_key'." if "prompt_cache_key" in body else None


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        ("responses-openai-1", (refuses_include, refuses_effort, refuses_cache_key)),
        ("chat-openai-1", (refuses_effort, refuses_cache_key)),
    ],
    ids=["responses", "chat"],
)
def test_refusals_of_added_fields_cost_one_repair_each_and_are_remembered(
    upstream, session, model, rules
):
    server = Refusing(answering("zhello", "Good morning."), *rules)
    upstream.choose(server)

    first = session("zhello", model=model)
    repairs = len(server.refusals)
    second = session("zhello again", "--continue", model=model)

    assert_success(first, "Good morning.")
    assert_success(second, "Good morning.")
    assert len(server.refusals) == len(set(server.refusals)) == repairs
    assert repairs >= len(rules)


# Kind 2: a picture or a PDF in the history


def refuses_pictures(body: dict[str, Any]) -> str | None:
    text = json.dumps(body)
    if "image_url" in text or "input_image" in text:
        return "You uploaded an unsupported image. Please make sure your image is valid."
    return None


def refuses_files(body: dict[str, Any]) -> str | None:
    text = json.dumps(body)
    if '"type": "file"' in text or "input_file" in text:
        return "Invalid content type. Only 'text' and 'image_url' are supported."
    return None


def png() -> bytes:
    """Build a picture of 8 x 8 black pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + checksum

    size = (8).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    pixels = zlib.compress((b"\0" + bytes(8 * 3)) * 8)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


FILES = {
    "shot.png": (png(), refuses_pictures),
    "paper.pdf": (pdfs.pages("marigold"), refuses_files),
}
"""A file that Claude Code reads -> its content, and the server that refuses it."""


@pytest.mark.parametrize("model", ["chat-generic-2", "responses-vllm-2"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_server_refuses_does_not_end_the_session(
    upstream, session, tmp_path, model, name
):
    content, rule = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    reading = Plan("zread", [[Call(("Read",), {"file_path": str(path)})]], lambda _: "I have read.")
    server = Refusing(ScriptedAgent([reading, Plan("zmore", (), lambda _: "Here I am.")]), rule)
    upstream.choose(server)

    read = session("zread", model=model)
    later = session("zmore", "--continue", model=model)

    assert "tool_result" in {block["type"] for block in read.blocks("user")}
    assert_success(read, "I have read.")
    assert_success(later, "Here I am.")
    if name == "paper.pdf":  # its text takes its place
        assert "marigold" in json.dumps(server.accepted)


# Kind 5: broken arguments of a tool in the history


def refuses_broken_arguments(body: dict[str, Any]) -> str | None:
    calls = [
        call["function"]["arguments"]
        for message in body.get("messages") or ()
        for call in message.get("tool_calls") or ()
    ]
    items = body.get("input") or ()
    calls += [item["arguments"] for item in items if item.get("type") == "function_call"]
    for arguments in calls:
        try:
            json.loads(arguments)
        except ValueError as error:
            return f"Failed to parse tool call arguments as JSON: {error}"
    return None


@pytest.mark.parametrize("model", ["chat-vllm-5", "responses-vllm-5"])
@pytest.mark.parametrize(
    "arguments",
    ['{"command": "echo ma', '{"command": "echo marigold"}</tool_call>'],
    ids=["cut", "with a leftover"],
)
def test_broken_arguments_do_not_end_the_session(upstream, session, model, arguments):
    steps = [[Call(("Bash",), arguments)]]
    broken = Plan("zbroken", steps, lambda seen: f"Result: {seen.results}")
    agent = ScriptedAgent([broken, Plan("zmore", (), lambda _: "Here I am.")])
    server = Refusing(agent, refuses_broken_arguments)
    upstream.choose(server)

    done = session("zbroken", model=model)
    later = session("zmore", "--continue", model=model)

    assert server.refusals == []
    assert_success(done, "marigold" if "marigold" in arguments else "Result: ")
    assert_success(later, "Here I am.")


# Kind 6: a chat template behind /responses


def refuses_later_system_messages(body: dict[str, Any]) -> str | None:
    roles = [item.get("role") for item in body.get("input") or body["messages"]]
    roles = ["system"] * bool(body.get("instructions")) + roles
    if {"system", "developer"} & set(roles[1:]):
        return "System message must be at the beginning."
    return None


@pytest.mark.parametrize("model", ["responses-vllm-6", "chat-vllm-6"])
def test_a_template_that_takes_one_system_message_answers(upstream, session, model):
    server = Refusing(answering("zhello", "Good morning."), refuses_later_system_messages)
    upstream.choose(server)

    assert_success(session("zhello", model=model), "Good morning.")


# Kinds 14 and 15: Anthropic's stream from other servers


def anthropic_answer(
    *blocks: tuple[dict[str, Any], ...], **fields: Any
) -> Iterator[dict[str, Any]]:
    """Return the events of an answer. Each block: its start, then its deltas."""
    usage = fields.get("usage", {"input_tokens": 10, "output_tokens": 1})
    message = {
        "id": fields.get("id", "msg_1"), "type": "message", "role": "assistant", "model": "m",
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield {"type": "message_start", "message": message}
    for index, (start, *deltas) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    called = any(start["type"] == "tool_use" for start, *_ in blocks)
    delta = {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": fields.get("end_usage", usage)}
    yield {"type": "message_stop"}


def said(text: str) -> tuple[dict[str, Any], ...]:
    return {"type": "text", "text": ""}, {"type": "text_delta", "text": text}


def anthropic_stream(*events: dict[str, Any]) -> Script:
    raw = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return stream(raw.encode())


def results_of(request: ReceivedRequest) -> list[str]:
    """Return the results of tools that the request has."""
    return [
        json.dumps(block["content"])
        for message in request.json["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]


def test_a_tool_runs_with_the_input_of_its_block_start_and_without_usage(upstream, session):
    def script(request: ReceivedRequest) -> Script | None:
        if not request.path.startswith("/v1/messages") or "count_tokens" in request.path:
            return None
        if results := results_of(request):
            return anthropic_stream(*anthropic_answer(said(f"Result: {results[-1]}"), usage=None))
        start = {"type": "tool_use", "id": "toolu_1", "name": "Bash",
                 "input": {"command": "echo mari''gold", "description": "Say it"}}  # fmt: skip
        return anthropic_stream(*anthropic_answer((start,), usage=None))

    upstream.choose(script)

    assert_success(session("zhello", model="anthropic-generic-14"), "marigold")


@pytest.mark.parametrize("model", ["anthropic-generic-15", "responses-openai-15"])
def test_two_generations_in_one_stream_are_asked_for_again(upstream, session, model):
    asked: list[ReceivedRequest] = []
    agent = answering("zhello", "The third generation.")

    def script(request: ReceivedRequest) -> Script | None:
        if not request.path.startswith(("/v1/messages", "/v1/responses")):
            return agent(request)
        if "count_tokens" in request.path or "zhello" not in request.body.decode():
            return agent(request)
        asked.append(request)
        if request.path.endswith("/responses"):
            return spliced_response() if len(asked) == 1 else agent(request)
        if len(asked) > 1:
            return anthropic_stream(*anthropic_answer(said("The third generation."), id="msg_c"))
        first = list(anthropic_answer(said("The first"), id="msg_a"))[:3]
        return anthropic_stream(*first, *anthropic_answer(said("The second."), id="msg_b"))

    upstream.choose(script)

    done = session("zhello", model=model)

    assert_success(done, "The third generation.")
    assert len(asked) == 2
    assert "The second" not in json.dumps(done.lines)


def spliced_response() -> Script:
    """Build a stream of Responses in which a second generation begins within the first."""
    first = list(responses_events("The first", [], 10))[:4]
    second = list(responses_events("The second.", [], 10))
    return stream(b"".join(first) + b"".join(second).replace(b"resp_agent", b"resp_other"))


# A key that is not valid


def test_a_wrong_key_ends_the_run_in_seconds(session):
    began = time.monotonic()

    done = session("zhello", model="chat-generic-0", key="sk-br-" + "0" * 48)

    assert time.monotonic() - began < 60  # without ``x-should-retry``: more than 180 s
    assert done.exit_code != 0
    assert "401" in done.text
