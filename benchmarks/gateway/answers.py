"""Build the responses of the scripted upstream: Chat Completions and Responses, whole or streamed.

They have the form of OpenAI's API, with every field that a gateway must skip.
"""

import json
import re

STAMP = "@00000000000000@"
FILLER = "the quick brown fox jumps over the lazy dog while seven wizards brew potent coffee "
OBFUSCATION = "aZ3kQ9mT1xR7vB5n"
TOOL_NAME = "Bash"
CREATED = 1763690000


def dumps(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_knobs(model):
    knobs = {
        "n": 50,
        "b": 5,
        "g": 0,
        "e": 0,
        "d": 0,
        "kind": "tool" if "-tool" in model else "text",
    }
    for key, value in re.findall(r"-([nbged])(\d+)(?=-|$)", model):
        knobs[key] = int(value)
    return knobs


def pieces(knobs):
    """Return the deltas; joined they are the text or the tool's JSON arguments."""
    n, size = knobs["n"], knobs["b"]
    if knobs["g"]:
        body = [STAMP] * n
    else:
        text = FILLER * (n * size // len(FILLER) + 2)
        body = [text[i * size : (i + 1) * size] for i in range(n)]
    if knobs["kind"] == "tool":
        body[0] = '{"command":"' + body[0]
        body[-1] += '"}'
    return body


def usage_of(knobs):
    return {"in": 1234, "cached": 1024, "out": knobs["n"], "reasoning": 0}


# Chat Completions


def chat_usage(knobs):
    u = usage_of(knobs)
    return {
        "prompt_tokens": u["in"],
        "completion_tokens": u["out"],
        "total_tokens": u["in"] + u["out"],
        "prompt_tokens_details": {"cached_tokens": u["cached"], "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def chat_full(model, knobs):
    text = "".join(pieces(knobs))
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if knobs["kind"] == "tool":
        message["content"] = None
        message["tool_calls"] = [
            {
                "id": "call_Mock0000000000000000001",
                "type": "function",
                "function": {"name": TOOL_NAME, "arguments": text},
            }
        ]
    return {
        "id": "chatcmpl-Mock00000000000000000000001",
        "object": "chat.completion",
        "created": CREATED,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if knobs["kind"] == "tool" else "stop",
            }
        ],
        "usage": chat_usage(knobs),
        "service_tier": "default",
        "system_fingerprint": "fp_mock000001",
    }


def chat_stream(model, knobs, with_usage):
    tool = knobs["kind"] == "tool"

    def chunk(delta, finish=None, choices=True, usage=None):
        data = {
            "id": "chatcmpl-Mock00000000000000000000001",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": model,
            "service_tier": "default",
            "system_fingerprint": "fp_mock000001",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
            if choices
            else [],
        }
        if with_usage:
            data["usage"] = usage
        data["obfuscation"] = OBFUSCATION[: 3 + len(dumps(delta)) % 13]
        return "data: " + dumps(data) + "\n\n"

    if tool:
        call = {
            "index": 0,
            "id": "call_Mock0000000000000000001",
            "type": "function",
            "function": {"name": TOOL_NAME, "arguments": ""},
        }
        head = [
            chunk({"role": "assistant", "content": None, "tool_calls": [call], "refusal": None})
        ]
        deltas = [
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": p}}]})
            for p in pieces(knobs)
        ]
    else:
        head = [chunk({"role": "assistant", "content": "", "refusal": None})]
        deltas = [chunk({"content": p}) for p in pieces(knobs)]
    tail = [chunk({}, finish="tool_calls" if tool else "stop")]
    if with_usage:
        tail.append(chunk({}, choices=False, usage=chat_usage(knobs)))
    tail.append("data: [DONE]\n\n")
    return head, deltas, tail


# Responses


def response_object(model, knobs, status, output):
    u = usage_of(knobs)
    echo = knobs["e"] * 1024
    tools = [
        {
            "type": "function",
            "description": (FILLER * 14)[:1000],
            "name": f"tool_{i}",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": FILLER},
                    "limit": {"type": "integer"},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
            "strict": False,
        }
        for i in range(echo // 1400)
    ]
    return {
        "id": "resp_mock000000000000000000000000000000000000000001",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "content_filter": None,
        "error": None,
        "incomplete_details": None,
        "instructions": (FILLER * (echo // 4 // len(FILLER) + 1))[: echo // 4] or None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "auto" if status == "in_progress" else "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": tools,
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None
        if status == "in_progress"
        else {
            "input_tokens": u["in"],
            "input_tokens_details": {"cached_tokens": u["cached"]},
            "output_tokens": u["out"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": u["in"] + u["out"],
        },
        "user": None,
        "metadata": {},
    }


def response_item(knobs, status, text):
    if knobs["kind"] == "tool":
        return {
            "id": "fc_mock0000000000000000000000000000000000000000001",
            "type": "function_call",
            "status": status,
            "arguments": text,
            "call_id": "call_Mock0000000000000000001",
            "name": TOOL_NAME,
        }
    content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]
    return {
        "id": "msg_mock000000000000000000000000000000000000000001",
        "type": "message",
        "status": status,
        "content": content if status == "completed" else [],
        "role": "assistant",
    }


def responses_full(model, knobs):
    return response_object(
        model, knobs, "completed", [response_item(knobs, "completed", "".join(pieces(knobs)))]
    )


def responses_stream(model, knobs):
    count = iter(range(10**9))

    def event(kind, **fields):
        data = {"type": kind, "sequence_number": next(count), **fields}
        return f"event: {kind}\ndata: {dumps(data)}\n\n"

    parts = pieces(knobs)
    text = "".join(parts)
    tool = knobs["kind"] == "tool"
    opened = response_item(knobs, "in_progress", "")
    done = response_item(knobs, "completed", text)
    where = {"item_id": opened["id"], "output_index": 0}
    head = [
        event("response.created", response=response_object(model, knobs, "in_progress", [])),
        event("response.in_progress", response=response_object(model, knobs, "in_progress", [])),
        event("response.output_item.added", output_index=0, item=opened),
    ]
    if tool:
        deltas = [
            event(
                "response.function_call_arguments.delta",
                **where,
                delta=p,
                obfuscation=OBFUSCATION[: 3 + len(p) % 13],
            )
            for p in parts
        ]
        tail = [event("response.function_call_arguments.done", **where, arguments=text)]
    else:
        where["content_index"] = 0
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        head.append(event("response.content_part.added", **where, part=part))
        deltas = [
            event(
                "response.output_text.delta",
                **where,
                delta=p,
                logprobs=[],
                obfuscation=OBFUSCATION[: 3 + len(p) % 13],
            )
            for p in parts
        ]
        tail = [
            event("response.output_text.done", **where, text=text, logprobs=[]),
            event("response.content_part.done", **where, part=dict(part, text=text)),
        ]
    tail.append(event("response.output_item.done", output_index=0, item=done))
    tail.append(
        event("response.completed", response=response_object(model, knobs, "completed", [done]))
    )
    return head, deltas, tail


def framed(event):
    raw = event.encode()
    return b"%x\r\n%b\r\n" % (len(raw), raw)


class Answer:
    """One answer, ready to send; `deltas` is None when `head` is all of it."""

    def __init__(self, kind, model, stream, with_usage):
        knobs = parse_knobs(model)
        self.gap, self.delay, self.deltas = knobs["g"], knobs["d"], None
        if not stream:
            full = chat_full(model, knobs) if kind == "chat" else responses_full(model, knobs)
            raw = dumps(full).encode()
            self.head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                b"x-request-id: req_mock\r\nopenai-processing-ms: 1\r\ncontent-length: %d\r\n\r\n"
                % len(raw)
            ) + raw
            return
        head, deltas, tail = (
            chat_stream(model, knobs, with_usage)
            if kind == "chat"
            else responses_stream(model, knobs)
        )
        start = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"x-request-id: req_mock\r\nopenai-processing-ms: 1\r\ncache-control: no-cache\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        end = b"".join(map(framed, tail)) + b"0\r\n\r\n"
        self.head = start + b"".join(map(framed, head))
        if not self.gap:
            self.head += b"".join(map(framed, deltas)) + end
            return
        stamp = STAMP.encode()
        self.deltas = [tuple(framed(d).split(stamp)) for d in deltas]
        self.end = end
