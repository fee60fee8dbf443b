"""What the request tests share: a request, targets by profile, and the body that comes of it."""

from typing import Any

from tests.translator.requests import KEYS, ask
from translator.carrier import CarrierKeys
from translator.dialect import Target, UpstreamRequest
from translator.openai_responses import DIALECT
from translator.profiles import profile_with


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
