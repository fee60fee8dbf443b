"""What the tests share: a plain request, its blocks, targets by profile, and what comes of it."""

from typing import Any

from translator.carrier import CarrierKeys
from translator.dialect import Target, UpstreamRequest
from translator.openai_responses import DIALECT
from translator.profiles import profile_with

KEYS = CarrierKeys(current="k1", keys={"k1": b"0123456789abcdef0123456789abcdef"})

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


def ask(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request; one short user message unless told otherwise."""
    history = list(messages) or [user("Hello.")]
    return {"model": "claude-bridge", "max_tokens": 100, "messages": history, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": _content(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _content(content)}


def system(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": _content(content), **fields}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source or PIXEL}


def call(call_id: str = "toolu_1", name: str = "get_weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(*content: Any, call_id: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, **fields}
    return block | ({"content": _content(content)} if content else {})


def target(profile: str = "openai", *, keys: CarrierKeys | None = KEYS, **overrides: Any) -> Target:
    capabilities = profile_with(profile, overrides)
    return Target(upstream="local", model="gpt-5.2", profile=capabilities, carrier_keys=keys)


def build(request: dict[str, Any], profile: str = "openai", **overrides: Any) -> UpstreamRequest:
    return DIALECT.build_request(request, target(profile, **overrides))


def body(request: dict[str, Any], profile: str = "openai", **overrides: Any) -> dict[str, Any]:
    return build(request, profile, **overrides).body


def sent(*messages: dict[str, Any], profile: str = "openai", **overrides: Any) -> list[Any]:
    """The input items that a history becomes."""
    return body(ask(*messages), profile, **overrides)["input"]


def fates(request: dict[str, Any], profile: str = "openai", **overrides: Any) -> dict[str, str]:
    """Path -> fate of everything noted."""
    return {note.path: note.fate for note in build(request, profile, **overrides).notes}


def said(role: str, *texts: str) -> dict[str, Any]:
    """A message item of these texts, as it goes upstream."""
    parts = [{"type": "input_text", "text": each} for each in texts]
    return {"type": "message", "role": role, "content": parts}


def _content(content: tuple[Any, ...]) -> Any:
    return content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
