"""Helpers of the request tests: targets by profile, and the translated request body."""

from typing import Any

from tests.fakes.anthropic_requests import make_request
from translator.capabilities import profile_with
from translator.dialect import TranslationTarget, UpstreamRequest
from translator.openai_chat import DIALECT
from translator.stream.reasoning_signature import SigningKeys


def target(
    profile: str = "generic", *, keys: SigningKeys | None = None, **overrides: Any
) -> TranslationTarget:
    capabilities = profile_with(profile, overrides)
    return TranslationTarget(upstream="local", model="m1", profile=capabilities, signing_keys=keys)


def build(
    request: dict[str, Any],
    profile: str = "generic",
    *,
    keys: SigningKeys | None = None,
    **overrides: Any,
) -> UpstreamRequest:
    return DIALECT.build_request(request, target(profile, keys=keys, **overrides))


def body(request: dict[str, Any], profile: str = "generic", **overrides: Any) -> dict[str, Any]:
    return build(request, profile, **overrides).body


def sent(
    *messages: dict[str, Any], profile: str = "generic", **overrides: Any
) -> list[dict[str, Any]]:
    """Return the Chat messages for a history."""
    return body(make_request(*messages), profile, **overrides)["messages"]


def fates(request: dict[str, Any], profile: str = "generic", **overrides: Any) -> dict[str, str]:
    """Return path -> fate of all notes."""
    return {note.path: note.fate for note in build(request, profile, **overrides).notes}
