"""GET /v1/models and /v1/models/{id}: the models that this caller may use.

Clients of Anthropic's and OpenAI's API use the same path. If the headers show a client of
Anthropic's API, the response has Anthropic's format, else OpenAI's.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from proxy.conf import conf
from proxy.gateway.admission.auth import authenticate
from proxy.gateway.admission.route_selection import choose_route
from proxy.gateway.http.errors import HttpError, unknown_model
from proxy.gateway.snapshot.config_snapshot import Caller, RouteEntry, directory
from proxy.gateway.snapshot.targets import SAME_MODEL, UpstreamServer
from proxy.gateway.upstream.upstream_models import listed_names
from translator.capabilities import EFFORTS, Profile

from .http_consumer import StreamingHttpConsumer

DEFAULT_LIMIT: Final = 20
HIGHEST_LIMIT: Final = 1_000
LIMIT: Final = re.compile(r"[0-9]{1,4}")
SINCE: Final = "2025-01-01T00:00:00Z"  # a fixed creation date, because clients expect one
SINCE_UNIX: Final = 1_735_689_600
LIFECYCLE: Final = "active"  # this value is returned for every model
EFFORTS_SHOWN: Final = ("low", "medium", "high", "xhigh", "max")
MAX_SERVERS: Final = 16
"""Maximum upstreams that are asked for their models."""
GLOB: Final = re.compile(r"[*?\[]")
ANTHROPIC_MODELS: Final = "claude"
"""How the names of Anthropic's models begin."""


class ModelsConsumer(StreamingHttpConsumer):
    methods = ("GET", "HEAD")
    cross_origin = True

    async def handle(self) -> None:
        caller = authenticate(self.head)
        model = self.head.path.removeprefix("/v1/models").strip("/")
        listed = _listed_routes(caller, await listed_names(_glob_servers(caller)))
        is_anthropic = (
            b"x-api-key" in self.head.headers
            or any(name.startswith(b"anthropic-") for name in self.head.headers)
            # Claude Code may send only a bearer token
            or self.head.client.name.startswith("claude")
        )
        body: dict[str, Any]
        if model:
            route = directory.snapshot.route(caller.team.name, model)
            if route is None:
                raise unknown_model(model, [each.model for each in listed])
            choose_route(caller, model)  # raises HttpError if the caller may not use the model
            body = _anthropic_model(model, route) if is_anthropic else _openai_model(model)
        elif is_anthropic:
            page, more = _paged(listed, parse_qs(self.head.query))
            models = [_anthropic_model(each.model, each) for each in page]
            body = {
                "data": models,
                "has_more": more,
                "first_id": models[0]["id"] if models else None,
                "last_id": models[-1]["id"] if models else None,
            }
        else:
            body = {"object": "list", "data": [_openai_model(each.model) for each in listed]}
        await self.send_response(200, msgspec.json.encode(body))


def _glob_servers(caller: Caller) -> list[UpstreamServer]:
    """Return the upstreams that serve models of the client's choice, by the team's globs.

    Which of their models the caller may use is checked by name: a glob itself need not be allowed.
    """
    servers = {
        route.targets[0].server.name: route.targets[0].server
        for route in directory.snapshot.globs
        if route.team in (None, caller.team.name)
        and route.targets
        and route.targets[0].model in SAME_MODEL
    }
    return list(servers.values())[:MAX_SERVERS]


def _listed_routes(caller: Caller, names: Mapping[str, Sequence[str]]) -> list[RouteEntry]:
    """Return the caller's routes.

    A route with a glob is replaced by one route for each model that matches the glob and that the
    route's first target may serve: of the price list, and of ``names``, which upstreams list.
    """
    snapshot = directory.snapshot
    known = {name: {*upstreams} for name, upstreams in snapshot.prices.upstreams_by_model.items()}
    for upstream, models in names.items():
        for name in models:
            known.setdefault(name, set()).add(upstream)
    listed = [route for route in snapshot.models(caller) if not GLOB.search(route.model)]
    named = {route.model for route in listed}
    for name, upstreams in sorted(known.items()):
        route = snapshot.route(caller.team.name, name)
        allowed = caller.models.allow(name) and caller.team.models.allow(name)
        if route and allowed and name not in named and _serves(route, name, upstreams):
            listed.append(dataclasses.replace(route, model=name))
    return listed


def _serves(route: RouteEntry, model: str, upstreams: set[str | None]) -> bool:
    """Return whether the route's first target may serve the model of a client.

    ``upstreams``: which upstreams list the model or have a price for it; None: all. A target that
    gets the client's model name is an upstream of Anthropic's models, or of other models.
    """
    if not route.targets:  # no upstream of the route can be used now; its models are the same
        return None in upstreams
    target = route.targets[0]
    if target.model not in SAME_MODEL:
        return None in upstreams or target.server.name in upstreams
    if target.server.name in upstreams:
        return True
    native = target.server.dialect_name == "anthropic"
    return None in upstreams and model.startswith(ANTHROPIC_MODELS) is native


def _paged(listed: list[RouteEntry], query: dict[str, list[str]]) -> tuple[list[RouteEntry], bool]:
    """Return the page that the query parameters select, and whether more pages follow.

    Raises HttpError (400) for an id that is not listed. If it returned the first page instead, a
    client that follows the pages would loop forever.
    """
    text = query.get("limit", [str(DEFAULT_LIMIT)])[0]
    if not (LIMIT.fullmatch(text) and 1 <= int(text) <= HIGHEST_LIMIT):
        raise HttpError(
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
            raise HttpError(400, "invalid_request_error", f"{name}: no model {model[:200]!r} here")
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
    """Return the profile of an Anthropic upstream, which receives all fields unchanged."""

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
    """Return the field ``capabilities`` of Anthropic's model object for an upstream's profile.

    ``native``: the upstream has Anthropic's API, so nothing is translated.
    """

    def support(supported: bool) -> dict[str, bool]:
        return {"supported": supported}

    searches = profile.web_search or (bool(conf.web_search_url) and not native)
    edits = support(True) if native and profile.compaction else None
    thinks = bool(profile.efforts) or bool(profile.thinking_switch)
    return {
        "batch": support(False),
        "citations": support(native),
        "code_execution": support(profile.code_interpreter),
        "context_management": {
            **support(profile.compaction),
            "clear_thinking_20251015": edits,
            "clear_tool_uses_20250919": edits,
            "compact_20260112": support(profile.compaction) if profile.compaction else None,
        },
        "effort": {
            **support(bool(profile.efforts)),
            **{effort: support(effort in profile.efforts) for effort in EFFORTS_SHOWN},
        },
        "image_input": support(profile.images),
        "pdf_input": support(profile.files),
        "server_tools": {
            **support(searches or profile.code_interpreter),
            "web_search": support(searches),
            "code_execution": support(profile.code_interpreter),
        },
        "structured_outputs": support(profile.json_schema),
        "thinking": {
            **support(thinks),
            "types": {
                "adaptive": support(thinks),
                "between_tools": support(profile.encrypted_reasoning),
                "disabled": support(True),
                "enabled": support(thinks),
            },
        },
    }
