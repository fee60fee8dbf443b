"""An upstream that plays the model of a coding agent, in both OpenAI dialects.

It reads each request as a model would: the last prompt selects a plan, the tool calls since then
select the step of the plan, and the text at the end quotes the tools' results. So the plan advances
only if the conversation arrives complete: prompts, calls, arguments and results. A request for a
summary gets one; later requests must contain it.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .script_steps import Script, json_response, stream
from .upstream import ReceivedRequest

SUMMARY_REQUEST = "create a detailed summary"
"""The words with which Claude Code requests a summary of the conversation."""
SUMMARY = "<summary>The user keeps a number in note.txt; remember the word marigold.</summary>"
NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. The first of ``names`` that the request offers is the tool's name."""

    names: tuple[str, ...]
    arguments: dict[str, Any] | str  # a string is sent as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """What the model does for the prompts that contain ``word``: steps of calls, then a text."""

    word: str
    steps: Sequence[Sequence[Call]] = ()
    text: Callable[["Conversation"], str] = lambda _: "Fine."


@dataclass(slots=True)
class Conversation:
    """A request's history, without the differences between the dialects."""

    prompts: list[str] = field(default_factory=list)  # all texts of the user, in order
    rounds: int = 0  # answers with tool calls since the last prompt with a plan
    results: list[str] = field(default_factory=list)  # the results of tools since that prompt
    tools: list[str] = field(default_factory=list)
    plan: Plan | None = None

    def hear(self, prompt: str, plans: Sequence[Plan]) -> None:
        self.prompts.append(prompt)
        for plan in plans:
            if plan.word in prompt:
                self.plan, self.rounds, self.results = plan, 0, []

    @property
    def wants_summary(self) -> bool:
        return bool(self.prompts) and SUMMARY_REQUEST in self.prompts[-1]


@dataclass(slots=True)
class ScriptedAgent:
    """A chooser of scripts for ``ScriptedUpstream.choose``.

    ``input_tokens`` is the reported size of each prompt that has no summary yet; a large one makes
    Claude Code compact the conversation by itself.
    """

    plans: Sequence[Plan]
    input_tokens: int = 1000
    conversations: list[Conversation] = field(default_factory=list)

    def __call__(self, request: ReceivedRequest) -> Script | None:
        if not request.path.endswith(("/responses", "/chat/completions")):
            return json_response({"error": {"message": "not here"}}, 404)
        body = request.json
        is_chat = request.path.endswith("/chat/completions")
        conversation = (_read_chat if is_chat else _read_responses)(body, self.plans)
        self.conversations.append(conversation)
        text, calls = self._answer(conversation)
        has_summary = any("marigold" in prompt for prompt in conversation.prompts)
        tokens = 1000 if has_summary else self.input_tokens
        events = (_chat_events if is_chat else responses_events)(text, calls, tokens)
        return stream(b"".join(events))

    def _answer(self, conversation: Conversation) -> tuple[str, list[dict[str, str]]]:
        if conversation.wants_summary:
            return SUMMARY, []
        plan = conversation.plan
        if plan is None or conversation.rounds >= len(plan.steps):
            return (plan.text(conversation) if plan else "Fine."), []
        return "", [
            {
                "id": f"call_{next(NUMBERS):06d}",
                "name": next((n for n in call.names if n in conversation.tools), call.names[0]),
                "arguments": call.arguments
                if isinstance(call.arguments, str)
                else json.dumps(call.arguments),
            }
            for call in plan.steps[conversation.rounds]
        ]


def _read_chat(body: dict[str, Any], plans: Sequence[Plan]) -> Conversation:
    read = Conversation(tools=[tool["function"]["name"] for tool in body.get("tools") or ()])
    for message in body["messages"]:
        match message["role"]:
            case "user":
                read.hear(_text(message["content"]), plans)
            case "assistant":
                read.rounds += bool(message.get("tool_calls"))
            case "tool":
                read.results.append(_text(message["content"]))
    return read


def _read_responses(body: dict[str, Any], plans: Sequence[Plan]) -> Conversation:
    read = Conversation(tools=[tool["name"] for tool in body.get("tools") or () if "name" in tool])
    previous = ""
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] == "user":
            read.hear(_text(item["content"]), plans)
        elif kind == "function_call":
            read.rounds += previous != "function_call"  # parallel calls follow each other
        elif kind == "function_call_output":
            read.results.append(_text(item["output"]))
        previous = kind
    return read


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or ())


def _chat_events(text: str, calls: list[dict[str, str]], tokens: int) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        body = {"id": "chatcmpl-agent", "model": "agent", "choices": choices, **more}
        return b"data: %b\n\n" % json.dumps(body).encode()

    yield chunk({"role": "assistant", "content": text or None})
    for index, call in enumerate(calls):
        function = {"name": call["name"], "arguments": call["arguments"]}
        piece = {"index": index, "id": call["id"], "type": "function", "function": function}
        yield chunk({"tool_calls": [piece]})
    usage = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
    yield chunk({}, "tool_calls" if calls else "stop", usage=usage)
    yield b"data: [DONE]\n\n"


def responses_events(text: str, calls: list[dict[str, str]], tokens: int) -> Iterator[bytes]:
    def event(name: str, **fields: Any) -> bytes:
        body = json.dumps({"type": f"response.{name}", **fields}).encode()
        return b"event: response.%b\ndata: %b\n\n" % (name.encode(), body)

    response = {"id": "resp_agent", "model": "agent", "status": "in_progress", "output": []}
    yield event("created", response=response)
    output: list[dict[str, Any]] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"id": "msg_0", "type": "message", "role": "assistant", "content": [part]})
        yield event("output_item.added", output_index=0, item={**output[0], "content": []})
        yield event("content_part.added", output_index=0, content_index=0,
                    part={**part, "text": ""})  # fmt: skip
        yield event("output_text.delta", output_index=0, content_index=0, delta=text)
        yield event("output_text.done", output_index=0, content_index=0, text=text)
        yield event("output_item.done", output_index=0, item=output[0])
    for call in calls:
        at = len(output)
        item = {"id": f"fc_{call['id']}", "type": "function_call", "call_id": call["id"],
                "name": call["name"], "arguments": call["arguments"]}  # fmt: skip
        output.append(item)
        yield event("output_item.added", output_index=at, item={**item, "arguments": ""})
        yield event("function_call_arguments.delta", output_index=at, delta=call["arguments"])
        yield event("function_call_arguments.done", output_index=at, arguments=call["arguments"])
        yield event("output_item.done", output_index=at, item=item)
    usage = {"input_tokens": tokens, "output_tokens": 10, "total_tokens": tokens + 10}
    yield event(
        "completed", response={**response, "status": "completed", "output": output, "usage": usage}
    )
