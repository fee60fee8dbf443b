"""Build request bodies: small (1 KB), big (20 tools, 30 KB of history), huge (400 KB).

``big-tools12`` and ``big-tools120`` are big with as many tools, ``big-history10`` is big with 10
times the history.
"""

import json
import re

WORDS = (
    "You are an interactive agent that helps people with software engineering tasks. Use the "
    "instructions below and the tools available to you. Prefer editing existing files, keep "
    "answers short, and check your work by running the tests. Never guess a path: look it up. "
    "When a command fails, read its output before trying again. "
)
NAMES = [
    "Bash",
    "Read",
    "Write",
    "Edit",
    "MultiEdit",
    "Glob",
    "Grep",
    "LS",
    "Task",
    "TodoWrite",
    "WebFetch",
    "WebSearch",
    "NotebookRead",
    "NotebookEdit",
    "KillShell",
    "BashOutput",
    "ExitPlanMode",
    "Skill",
    "SlashCommand",
    "AskUser",
]


MODELS = (
    "mock-n1-b5-g0-text",
    "mock-n50-b5-g0-text",
    "mock-n200-b5-g0-text",
    "mock-n200-b5-g0-text-e20",
    "mock-n100-b16-g20-text",
    "mock-n150-b16-g20-text",
    "mock-n2000-b5-g0-text",
)
"""Every model name that a scenario uses, for peers that need a list of models."""


SIZES = ("small", "big", "huge", "big-tools12", "big-tools120", "big-history10")


def text(size):
    return (WORDS * (size // len(WORDS) + 1))[:size]


def tool(name):
    return {
        "name": name,
        "description": text(520),
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What to run or to look for"},
                "path": {"type": "string", "description": "An absolute path"},
                "limit": {"type": "number", "description": "The most lines to return"},
                "mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    }


def anthropic(size, model, stream):
    body = {"model": model, "max_tokens": 8192, "stream": stream}
    if size == "small":
        body["system"] = text(400)
        body["messages"] = [{"role": "user", "content": text(450)}]
        return body
    if size == "huge":
        body["system"] = text(400)
        body["messages"] = [{"role": "user", "content": text(400_000)}]
        return body
    body["system"] = [
        {"type": "text", "text": text(120)},
        {"type": "text", "text": text(13000), "cache_control": {"type": "ephemeral"}},
    ]
    names = NAMES
    if size.startswith("big-tools"):  # OpenAI accepts at most 128
        names = [f"{NAMES[i % 12]}_{i // 12}" for i in range(int(size.removeprefix("big-tools")))]
    body["tools"] = [tool(n) for n in names]
    body["temperature"] = 1
    body["metadata"] = {
        "user_id": "user_0123456789abcdef_account__session_00000000-0000-0000-0000-000000000000"
    }
    messages = [{"role": "user", "content": [{"type": "text", "text": text(600)}]}]
    for i in range(80 if size == "big-history10" else 8):
        call = f"toolu_01Mock{i:018d}"
        messages.append(
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": text(200)},
                    {
                        "type": "tool_use",
                        "id": call,
                        "name": NAMES[i % len(NAMES)],
                        "input": {"command": text(120), "path": f"/repo/src/file_{i}.py"},
                    },
                ],
            }
        )
        messages.append(
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call,
                        "content": [{"type": "text", "text": text(1500)}],
                    },
                ],
            }
        )
    messages[-1]["content"].append(
        {"type": "text", "text": text(300), "cache_control": {"type": "ephemeral"}}
    )
    body["messages"] = messages
    return body


def chat(size, model, stream):
    """Return the same request as a Chat Completions body (for untranslated limits)."""
    src = anthropic(size, model, stream)
    system = (
        src["system"]
        if isinstance(src["system"], str)
        else "\n".join(b["text"] for b in src["system"])
    )
    out = [{"role": "system", "content": system}]
    for m in src["messages"]:
        if isinstance(m["content"], str):
            out.append(m)
            continue
        for b in m["content"]:
            if b["type"] == "text":
                out.append({"role": m["role"], "content": b["text"]})
            elif b["type"] == "tool_use":
                out.append(
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": b["id"],
                                "type": "function",
                                "function": {
                                    "name": b["name"],
                                    "arguments": json.dumps(b["input"]),
                                },
                            }
                        ],
                    }
                )
            else:
                out.append(
                    {
                        "role": "tool",
                        "tool_call_id": b["tool_use_id"],
                        "content": b["content"][0]["text"],
                    }
                )
    body = {"model": model, "messages": out, "stream": stream, "max_completion_tokens": 8192}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if "tools" in src:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": t["name"],
                    "description": t["description"],
                    "parameters": t["input_schema"],
                },
            }
            for t in src["tools"]
        ]
    return body


def responses(size, model, stream):
    """Return the same request as a Responses body (for untranslated limits)."""
    body = chat(size, model, stream)
    items = []
    for m in body["messages"][1:]:
        if m["role"] == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": m["tool_call_id"],
                    "output": m["content"],
                }
            )
        elif m.get("tool_calls"):
            c = m["tool_calls"][0]
            items.append({"type": "function_call", "call_id": c["id"], **c["function"]})
        else:
            kind = "output_text" if m["role"] == "assistant" else "input_text"
            items.append({"role": m["role"], "content": [{"type": kind, "text": m["content"]}]})
    out = {
        "model": model,
        "instructions": body["messages"][0]["content"],
        "input": items,
        "stream": stream,
        "store": False,
        "max_output_tokens": 8192,
    }
    if "tools" in body:
        out["tools"] = [{"type": "function", **t["function"]} for t in body["tools"]]
    return out


BUILDERS = {"anthropic": anthropic, "chat": chat, "responses": responses}
PATHS = {"anthropic": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


def body(api, size, model, stream):
    return json.dumps(BUILDERS[api](size, model, stream), separators=(",", ":")).encode()


def expected(model):
    """Return (kind, length of the answer's text or of the tool's command) for a mock model name."""
    knobs = {k: int(v) for k, v in re.findall(r"-([nbged])(\d+)(?=-|$)", model)}
    n = knobs.get("n", 50)
    return ("tool" if "-tool" in model else "text"), n * (
        16 if knobs.get("g") else knobs.get("b", 5)
    )


if __name__ == "__main__":
    for api in BUILDERS:
        print(
            api,
            {size: len(body(api, size, "mock-n200-b5-g0-text", True)) for size in ("small", "big")},
        )
