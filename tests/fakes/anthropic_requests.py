"""Anthropic requests and their blocks, for the tests of every dialect."""

from typing import Any

from translator.stream.reasoning_signature import SigningKeys

KEYS = SigningKeys(current="k1", keys={"k1": b"0123456789abcdef0123456789abcdef"})

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
BROKEN_INPUTS = [
    ('{"city": "Os', {"_raw": '{"city": "Os'}),
    ("{oops", {"_raw": "{oops"}),
    ('{"city": "Oslo",}', {"city": "Oslo"}),
    ('"{\\"city\\": 1}"', {"city": 1}),
    ("", {}),
    (" ", {}),
    ("null", {}),
    (None, {}),
    ([1, "a"], {"value": [1, "a"]}),
    (5, {"value": 5}),
    (False, {"value": False}),
    ("[" * 5000, {"_raw": "[" * 5000}),
]
"""The ``input`` of a call that is no object -> the object that upstreams get."""


def make_request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request; the default is one short user message."""
    history = list(messages) or [user("Hello.")]
    return {"model": "claude-bridge", "max_tokens": 100, "messages": history, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": _content(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _content(content)}


def system(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": _content(content), **fields}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source or PIXEL}


def call(call_id: str = "toolu_1", name: str = "get_weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(*content: Any, call_id: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, **fields}
    return block | ({"content": _content(content)} if content else {})


def _content(content: tuple[Any, ...]) -> Any:
    return content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
