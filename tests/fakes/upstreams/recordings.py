"""Recorded traffic, and a simple parser for it that shares no code with the translator.

For Responses recordings this parser uses the finished items at the end instead of the deltas; for
Chat recordings it concatenates the deltas. Tests compare its result with the translator's.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
IMAGE = "[an image was generated that cannot be shown here]"
ABSENT = f"recorded traffic is not beside this clone ({CORPUS}); the project's own cases cover its formats"


class Call(NamedTuple):
    """A tool call of the recording; ``id`` is empty where its id is not valid for clients."""

    id: str
    name: str
    input: Any


@dataclass(slots=True)
class ResponseSummary:
    """The content of one response."""

    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: dict[str, int] | None = None  # None: the recording has no usage
    stop_reason: str = "end_turn"
    failed: str = ""  # error code of an incomplete response; empty: complete


def recordings(kind: str) -> list[Path]:
    """Return the files of one folder of the corpus; none if the corpus is absent."""
    return sorted((CORPUS / kind).glob("*.*"))


@cache
def index() -> dict[str, dict[str, Any]]:
    """Return the entries of the corpus' index, by the name of the recording."""
    entries = json.loads((CORPUS / "index.json").read_bytes())["entries"]
    return {entry["file"]: entry for entry in entries}


def summary_of_message(message: dict[str, Any]) -> ResponseSummary:
    """Summarize a message of the translator."""
    blocks, usage = message["content"], message["usage"]
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return ResponseSummary(
        text="".join(b["text"] for b in blocks if b["type"] == "text"),
        thinking="".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
        calls=[Call(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"],
        usage={
            **{name: usage[name] for name in ("input_tokens", "output_tokens")},
            **{name: usage.get(name) or 0 for name in cached},
        },
        stop_reason=message["stop_reason"],
    )


def summary_of_recording(path: Path) -> ResponseSummary:
    """Summarize a recording of any of the four kinds."""
    raw = path.read_bytes()
    match path.parent.name:
        case "responses-stream":
            return summary_of_responses(events_of(raw))
        case "chat-stream":
            return summary_of_chat(events_of(raw))
        case "responses-json":
            body = json.loads(raw)
            return summary_of_responses([{"type": f"response.{body['status']}", "response": body}])
        case "chat-json":
            body = json.loads(raw)
            return summary_of_chat([_as_chunk(body)])
    raise ValueError(path)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """Return the JSON of every ``data:`` line; recordings have one line per event."""
    lines = [line.strip() for line in raw.decode().splitlines()]
    payloads = [line[5:].strip() for line in lines if line.startswith("data:")]
    return [json.loads(each) for each in payloads if each not in {"", "[DONE]"}]


# Responses


def summary_of_responses(events: list[dict[str, Any]]) -> ResponseSummary:
    ends = [e for e in events if e["type"] in RESPONSES_ENDS]
    if not ends:
        return ResponseSummary(failed="no terminal event")
    for event in events:
        if event["type"] in {"error", "response.failed"}:
            holder = event.get("error") or event.get("response", {}).get("error") or event
            return ResponseSummary(failed=holder.get("code") or "error")
    last = ends[-1]["response"]
    streamed = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    reading = ResponseSummary(usage=_responses_usage(last.get("usage")))
    items = last["output"] or streamed
    if any(item["type"] == "mcp_approval_request" for item in items):
        return ResponseSummary(usage=reading.usage, failed="approval is impossible")
    refusals = [_add_item(reading, item, events) for item in items]
    why = (last.get("incomplete_details") or {}).get("reason")
    reading.stop_reason = _stop_reason(why, refused=any(refusals), called=bool(reading.calls))
    return reading


def _add_item(reading: ResponseSummary, item: dict[str, Any], events: list[dict[str, Any]]) -> bool:
    """Add one output item; return whether it is a refusal."""
    match item["type"]:
        case "message":
            parts = item["content"]
            whole = "".join(p.get("text") or p.get("refusal") or "" for p in parts)
            reading.text += _as_streamed(whole, item["id"], events)
            return any(part["type"] == "refusal" for part in parts)
        case "reasoning":
            shown = item.get("content") or item.get("summary") or []
            separator = "" if item.get("content") else "\n\n"
            reading.thinking += separator.join(part["text"] for part in shown)
        case "image_generation_call":
            reading.text += IMAGE
        case "function_call":
            reading.calls.append(parse_call(item["call_id"], item["name"], item["arguments"]))
        case "custom_tool_call":
            reading.calls.append(Call(_id(item["call_id"]), item["name"], {"input": item["input"]}))
    return False


def _as_streamed(whole: str, item_id: str, events: list[dict[str, Any]]) -> str:
    """Return the text of the stream that ends with this message.

    The texts differ only in recordings that were edited by hand.
    """
    text_events = {"response.output_text.delta", "response.refusal.delta"}
    deltas = "".join(
        e["delta"] for e in events if e["type"] in text_events and e.get("item_id") == item_id
    )
    return whole if whole.startswith(deltas) else deltas


RESPONSES_ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


def _responses_usage(usage: dict[str, Any] | None) -> dict[str, int] | None:
    if not usage:
        return None
    details = usage.get("input_tokens_details") or {}
    return _disjoint(usage["input_tokens"], usage["output_tokens"], details)


# Chat Completions


def summary_of_chat(chunks: list[dict[str, Any]]) -> ResponseSummary:
    reading = ResponseSummary()
    calls: list[dict[str, str]] = []
    finish = None
    refused = False
    for chunk in chunks:
        if error := chunk.get("error"):
            if error.get("code") == "content_filter":  # a policy refusal, not a failure
                return ResponseSummary(stop_reason="refusal")
            return ResponseSummary(failed=error.get("code") or "error")
        usage = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage")
        reading.usage = _chat_usage(usage) or reading.usage
        for choice in chunk.get("choices") or []:
            if choice["index"] != 0:
                continue
            delta = choice.get("delta") or {}
            text, thinking = _content(delta.get("content"))
            reading.text += text + (delta.get("refusal") or "")
            refused |= bool(delta.get("refusal"))
            reading.thinking += _reasoning(delta) or thinking
            legacy = delta.get("function_call")
            for piece in delta.get("tool_calls") or ([{"function": legacy}] if legacy else []):
                _add(calls, piece)
            finish = finish or choice.get("finish_reason")
    reading.calls = [parse_call(c["id"], c["name"], c["arguments"]) for c in calls]
    reading.stop_reason = _stop_reason(finish, refused=refused, called=bool(calls))
    # Snowflake never sends a finish reason; a last chunk with only usage is the end.
    ended = finish or (chunks and chunks[-1].get("usage") and not chunks[-1].get("choices"))
    reading.failed = "" if ended else "no finish_reason"
    return reading


def _as_chunk(body: dict[str, Any]) -> dict[str, Any]:
    choices = [choice | {"delta": choice.get("message", {})} for choice in body.get("choices", [])]
    return body | {"choices": choices}


def _content(content: str | list[dict[str, Any]] | None) -> tuple[str, str]:
    """Return text and thinking of a ``content`` that may be a list of parts (Mistral)."""
    if not isinstance(content, list):
        return content or "", ""
    text = "".join(part["text"] for part in content if part["type"] == "text")
    inner = [p for part in content if part["type"] == "thinking" for p in part["thinking"]]
    return text, "".join(part["text"] for part in inner)


def _reasoning(delta: dict[str, Any]) -> str:
    payloads = delta.get("reasoning_content") or delta.get("reasoning")
    details = delta.get("reasoning_details") or []
    return payloads or "".join(d.get("text") or d.get("summary") or "" for d in details)


def _add(calls: list[dict[str, str]], piece: dict[str, Any]) -> None:
    function = piece.get("function") or {}
    slot = str(piece.get("index", f"no index {piece.get('id')}"))
    same_slot = [call for call in calls if call["slot"] == slot]
    if not same_slot or (
        piece.get("id") and same_slot[-1]["id"] and piece["id"] != same_slot[-1]["id"]
    ):
        calls.append({"slot": slot, "id": "", "name": "", "arguments": ""})
        same_slot = calls[-1:]
    call = same_slot[-1]
    call["id"] = call["id"] or piece.get("id") or ""
    call["name"] = call["name"] or function.get("name") or ""
    arguments = function.get("arguments") or ""
    call["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)


def _chat_usage(usage: dict[str, Any] | None) -> dict[str, int] | None:
    if not usage:
        return None
    details = dict(usage.get("prompt_tokens_details") or {})
    details.setdefault(
        "cached_tokens", usage.get("prompt_cache_hit_tokens", usage.get("num_cached_tokens"))
    )
    apart = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    output = usage["completion_tokens"]
    if usage.get("total_tokens") == usage["prompt_tokens"] + output + apart:
        output += apart  # xAI does not include reasoning in the completion tokens
    return _disjoint(usage["prompt_tokens"], output, details)


# Both


def _disjoint(total: int, output: int, details: dict[str, Any]) -> dict[str, int]:
    cached, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    fresh = total - cached - written
    return {
        "input_tokens": fresh
        if fresh >= 0
        else total,  # the server already excludes cached tokens from the input tokens
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": output,
    }


def _stop_reason(why: str | None, *, refused: bool, called: bool) -> str:
    if why in {"max_output_tokens", "length"}:
        return "max_tokens"
    if refused or why == "content_filter":
        return "refusal"
    return "tool_use" if called else "end_turn"


def parse_call(call_id: str | None, name: str, arguments: Any) -> Call:
    if isinstance(arguments, dict):
        return Call(_id(call_id), name, arguments)
    try:
        return Call(_id(call_id), name, json.loads(arguments or "{}"))
    except ValueError:
        return Call(_id(call_id), name, arguments)


def _id(call_id: str | None) -> str:
    return call_id if call_id and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call_id) else ""


def same_calls(expected: Iterable[Call], actual: Iterable[Call]) -> bool:
    """Compare tool calls; an invalid id may have been replaced by any other id."""
    expected, actual = list(expected), list(actual)
    return len(expected) == len(actual) and all(
        (expected_call.name, expected_call.input) == (actual_call.name, actual_call.input)
        and actual_call.id
        and expected_call.id in {"", actual_call.id}
        for expected_call, actual_call in zip(expected, actual, strict=True)
    )
