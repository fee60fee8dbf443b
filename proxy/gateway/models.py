"""GET /v1/models and /v1/models/{id}: the names that this caller may ask for.

Anthropic's shape, or OpenAI's when nothing in the request is Anthropic's: tools of both worlds
ask the same path.
"""

import dataclasses
import re
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from translator.profiles import EFFORTS, Profile

from .auth import authenticate
from .base import StreamingHttpConsumer
from .directory import Caller, RouteEntry, directory
from .refusals import Refusal, unknown_model
from .routes import choose_route

DEFAULT_LIMIT: Final = 20
HIGHEST_LIMIT: Final = 1_000
LIMIT: Final = re.compile(r"[0-9]{1,4}")
SINCE: Final = "2025-01-01T00:00:00Z"  # a route has no birthday that clients could use
SINCE_UNIX: Final = 1_735_689_600
LIFECYCLE: Final = "active"  # of every route that there is
EFFORTS_SHOWN: Final = ("low", "medium", "high", "xhigh", "max")
GLOB: Final = re.compile(r"[*?\[]")
SHIPPED: Final = (
    "claude-opus-5-5", "claude-sonnet-5-5", "claude-opus-5", "claude-sonnet-5",
    "claude-opus-4-8", "claude-sonnet-4-6", "claude-haiku-4-5", "claude-haiku-4-5-20251001",
)  # fmt: skip
"""Names that clients are shipped with; those that a glob serves are listed in its place."""


class ModelsConsumer(StreamingHttpConsumer):
    methods = ("GET", "HEAD")

    async def handle(self) -> None:
        caller = authenticate(self.head)
        wanted = self.head.path.removeprefix("/v1/models").strip("/")
        body = self._one(caller, wanted) if wanted else self._page(caller)
        await self.respond(200, msgspec.json.encode(body))

    @property
    def _anthropic(self) -> bool:
        headers = self.head.headers
        return (
            b"x-api-key" in headers
            or any(name.startswith(b"anthropic-") for name in headers)
            or self.head.client.name.startswith("claude")  # Claude Code asks with a token alone
        )

    def _one(self, caller: Caller, model: str) -> dict[str, Any]:
        route = directory.snapshot.route(caller.team.name, model)
        if route is None:
            raise unknown_model(model, [each.model for each in _listed(caller)])
        choose_route(caller, model)  # raises when this caller may not use it
        return _anthropic_model(model, route) if self._anthropic else _openai_model(model)

    def _page(self, caller: Caller) -> dict[str, Any]:
        listed = _listed(caller)
        if not self._anthropic:
            return {"object": "list", "data": [_openai_model(each.model) for each in listed]}
        page, more = _paged(listed, parse_qs(self.head.query))
        models = [_anthropic_model(each.model, each) for each in page]
        return {
            "data": models,
            "has_more": more,
            "first_id": models[0]["id"] if models else None,
            "last_id": models[-1]["id"] if models else None,
        }


def _listed(caller: Caller) -> list[RouteEntry]:
    """Routes by name; a glob is no name, so it is shown by the shipped names that it serves."""
    snapshot = directory.snapshot
    listed = [route for route in snapshot.models(caller) if not GLOB.search(route.model)]
    named = {route.model for route in listed}
    for name in SHIPPED:
        route = snapshot.route(caller.team.name, name)
        allowed = caller.models.allow(name) and caller.team.models.allow(name)
        if route is not None and allowed and name not in named:
            listed.append(dataclasses.replace(route, model=name))
    return listed


def _paged(listed: list[RouteEntry], query: dict[str, list[str]]) -> tuple[list[RouteEntry], bool]:
    """A page by ``limit`` and ``after_id`` or ``before_id``, and whether there is more.

    Raises Refusal: who pages on from a model that is gone would begin anew, again and again.
    """
    text = query.get("limit", [str(DEFAULT_LIMIT)])[0]
    if not (LIMIT.fullmatch(text) and 1 <= int(text) <= HIGHEST_LIMIT):
        raise Refusal(
            400, "invalid_request_error", f"limit is {text[:20]!r}; expected 1 to {HIGHEST_LIMIT}"
        )
    limit = int(text)
    lifecycles = [*query.get("lifecycle", ()), *query.get("lifecycle[]", ())]
    if lifecycles and LIFECYCLE not in lifecycles:
        listed = []
    names = [route.model for route in listed]
    before, after = query.get("before_id", [""])[0], query.get("after_id", [""])[0]
    for name, model in (("before_id", before), ("after_id", after)):
        if model and model not in names:
            raise Refusal(400, "invalid_request_error", f"{name}: no model {model[:200]!r} here")
    if before:
        end = names.index(before)
        return listed[max(0, end - limit) : end], end > limit
    start = names.index(after) + 1 if after else 0
    return listed[start : start + limit], len(listed) > start + limit


def _openai_model(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": SINCE_UNIX, "owned_by": "messages-bridge"}


def _anthropic_model(model: str, route: RouteEntry) -> dict[str, Any]:
    server = route.targets[0].server if route.targets else None
    profile = server.profile if server is not None else Profile()
    native = server is not None and server.dialect_name == "anthropic"
    return {
        "type": "model",
        "id": model,
        "display_name": model,
        "created_at": SINCE,
        "lifecycle": LIFECYCLE,
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": profile.context_window or None,
        "max_tokens": None,
        "capabilities": _capabilities(_passed_through(profile) if native else profile, native),
    }


def _passed_through(profile: Profile) -> Profile:
    """What the upstream does with Anthropic's own fields, which it gets as they came."""

    def takes(field: str) -> bool:
        return field not in profile.refused_fields

    return dataclasses.replace(
        profile,
        code_interpreter=profile.server_tools,
        compaction=takes("context_management"),
        efforts=EFFORTS if takes("output_config") else (),
        encrypted_reasoning=takes("thinking"),
        files=True,
        json_schema=takes("output_config"),
        thinking_switch="thinking" if takes("thinking") else "",
        web_search=profile.server_tools,
    )


def _capabilities(profile: Profile, native: bool) -> dict[str, Any]:
    """What Anthropic's clients ask of a model, read from the profile that translates for it.

    ``native``: nothing is translated.
    """

    def says(supported: bool) -> dict[str, bool]:
        return {"supported": supported}

    edits = says(True) if native and profile.compaction else None
    thinks = bool(profile.efforts) or bool(profile.thinking_switch)
    return {
        "batch": says(False),
        "citations": says(native),
        "code_execution": says(profile.code_interpreter),
        "context_management": {
            **says(profile.compaction),
            "clear_thinking_20251015": edits,
            "clear_tool_uses_20250919": edits,
            "compact_20260112": says(profile.compaction) if profile.compaction else None,
        },
        "effort": {
            **says(bool(profile.efforts)),
            **{effort: says(effort in profile.efforts) for effort in EFFORTS_SHOWN},
        },
        "image_input": says(profile.images),
        "pdf_input": says(profile.files),
        "server_tools": {
            **says(profile.web_search or profile.code_interpreter),
            "web_search": says(profile.web_search),
            "code_execution": says(profile.code_interpreter),
        },
        "structured_outputs": says(profile.json_schema),
        "thinking": {
            **says(thinks),
            "types": {
                "adaptive": says(thinks),
                "between_tools": says(profile.encrypted_reasoning),
                "disabled": says(True),
                "enabled": says(thinks),
            },
        },
    }
