"""Helpers of the request tests: targets by profile, and the translated request body."""

from typing import Any

from tests.fakes.anthropic_requests import KEYS, make_request
from translator.capabilities import profile_with
from translator.dialect import TranslationTarget, UpstreamRequest
from translator.openai_responses import DIALECT
from translator.stream.reasoning_signature import SigningKeys


def target(
    profile: str = "openai", *, keys: SigningKeys | None = KEYS, **overrides: Any
) -> TranslationTarget:
    capabilities = profile_with(profile, overrides)
    return TranslationTarget(
        upstream="local", model="gpt-5.2", profile=capabilities, signing_keys=keys
    )


def build(request: dict[str, Any], profile: str = "openai", **overrides: Any) -> UpstreamRequest:
    return DIALECT.build_request(request, target(profile, **overrides))


def body(request: dict[str, Any], profile: str = "openai", **overrides: Any) -> dict[str, Any]:
    return build(request, profile, **overrides).body


def sent(*messages: dict[str, Any], profile: str = "openai", **overrides: Any) -> list[Any]:
    """Return the input items for a history."""
    return body(make_request(*messages), profile, **overrides)["input"]


def fates(request: dict[str, Any], profile: str = "openai", **overrides: Any) -> dict[str, str]:
    """Return path -> fate of all notes."""
    return {note.path: note.fate for note in build(request, profile, **overrides).notes}


def input_message(role: str, *texts: str) -> dict[str, Any]:
    """Return a message item with these texts in the form of a request."""
    parts = [{"type": "input_text", "text": each} for each in texts]
    return {"type": "message", "role": role, "content": parts}
