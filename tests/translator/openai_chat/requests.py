"""What the request tests share: a request, targets by profile, and the body that comes of it."""

from typing import Any

from tests.translator.requests import ask
from translator.carrier import CarrierKeys
from translator.dialect import Target, UpstreamRequest
from translator.openai_chat import DIALECT
from translator.profiles import profile_with


def target(
    profile: str = "generic", *, keys: CarrierKeys | None = None, **overrides: Any
) -> Target:
    capabilities = profile_with(profile, overrides)
    return Target(upstream="local", model="m1", profile=capabilities, carrier_keys=keys)


def build(
    request: dict[str, Any],
    profile: str = "generic",
    *,
    keys: CarrierKeys | None = None,
    **overrides: Any,
) -> UpstreamRequest:
    return DIALECT.build_request(request, target(profile, keys=keys, **overrides))


def body(request: dict[str, Any], profile: str = "generic", **overrides: Any) -> dict[str, Any]:
    return build(request, profile, **overrides).body


def sent(
    *messages: dict[str, Any], profile: str = "generic", **overrides: Any
) -> list[dict[str, Any]]:
    """The Chat messages that a history becomes."""
    return body(ask(*messages), profile, **overrides)["messages"]


def fates(request: dict[str, Any], profile: str = "generic", **overrides: Any) -> dict[str, str]:
    """Path -> fate of everything noted."""
    return {note.path: note.fate for note in build(request, profile, **overrides).notes}
