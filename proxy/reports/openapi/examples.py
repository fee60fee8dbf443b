"""Examples for the OpenAPI document: one value for each name, and objects made of these values.

A name has the same example wherever it stands, so that the examples of a parameter, a body and a
response belong together.
"""

from collections.abc import Mapping
from typing import Any, Final

MAX_DEPTH: Final = 8
WRAPPERS: Final = frozenset({"", "data", "results"})
"""Names of the parts of a page whose rows are the resource itself."""

BY_NAME: Final[Mapping[str, Any]] = {
    "audit.id": 4711,
    "X-Reading-Reason": "ticket 42",
    "blocks.type": "text",
    "budgets.id": "budget_3",
    "key.id": "apikey_12",
    "keys.id": "apikey_12",
    "keys.targets": ["openai/gpt-5.2"],
    "me.targets": ["openai/gpt-5.2"],
    "models.id": 4,
    "pauses.id": 2,
    "prices.id": 7,
    "report": "usage",
    "reports.id": "spend",
    "reports.name": "spend",
    "requests.id": "req_01HZX3V9J0",
    "team.id": "platform",
    "team.name": "platform",
    "teams.id": "platform",
    "teams.name": "platform",
    "upstream.id": "openai",
    "upstreams.id": "openai",
    "upstreams.name": "openai",
    "user.id": "ada",
    "users.id": "ada",
    "users.name": "ada",
    "client.name": "claude-cli",
    "error.code": "overloaded",
    "error.message": "the upstream is overloaded",
    "error.source": "upstream",
    "error.type": "overloaded_error",
    "me.name": "ci",
    "me.kind": "key",
    "token_sources.cache_read": "reported",
    "token_sources.cache_write": "missing",
    "token_sources.input": "reported",
    "token_sources.output": "reported",
    "token_sources.reasoning": "estimated",
    "turns.i": 0,
    "turns.role": "user",
    "account_id": "user_ada",
    "actor.api_key_name": "ci",
    "actor.type": "api_actor",
    "address": "10.0.0.7",
    "actor": "platform/ci",
    "actor_ids": ["apikey_12"],
    "after_id": "apikey_12",
    "api_key": "sk-0123",
    "api_key_from": {"env": "OPENAI_API_KEY"},
    "api_keys.id": "apikey_12",
    "api_keys.status": "active",
    "api_keys.type": "api_key",
    "before_id": "apikey_12",
    "client": "claude-cli",
    "created_by.id": "user_ada",
    "created_by.type": "user",
    "credentials": {"kind": "aws"},
    "credentials_kind": None,
    "agent": "agent-1",
    "agent_id": "agent-1",
    "amount": "412.5",
    "api_key_id": "apikey_12",
    "api_version": "2023-06-01",
    "app": "cli",
    "base_url": "https://api.openai.com/v1",
    "beta": "context-1m-2025-08-07",
    "betas": ["context-1m-2025-08-07"],
    "blocks": [{"type": "text", "text": "read note.txt"}],
    "branch": "main",
    "budget_id": "budget_3",
    "bucket": "1d",
    "by": "model",
    "cache_hit_rate": 0.87,
    "cache_read": "0.125",
    "client_version": "2.1.329",
    "code": "insufficient_quota",
    "command": "applyconfig",
    "compartment_id": "cmpt_4",
    "context_window": "0-200k",
    "cost_parts": {"input": "0.001", "output": "0.003213"},
    "created_by_user_id": "user_ada",
    "currency": "USD",
    "customer_type": "api",
    "cost_type": "tokens",
    "description": "claude-opus-5-5 Usage - Output Tokens",
    "detail": "4 requests",
    "dialect": "responses",
    "display_color": "#6C5BB9",
    "doors.limit": "600",
    "download": "/api/v1/exports/export_01HZX3/download/",
    "email": "ada@example.com",
    "email_address": "ada@example.com",
    "endpoint": "messages",
    "error": None,
    "error_code": "overloaded",
    "error_message": "overloaded",
    "error_source": "upstream",
    "error_type": "overloaded_error",
    "expand": ["team"],
    "exports.id": "export_01HZX3",
    "exports.format": "csv",
    "exports.report": "requests",
    "first_id": "apikey_12",
    "export_id": "export_01HZX3",
    "group": "member",
    "group_by": ["model"],
    "groups": ["member"],
    "hard": True,
    "has_more": True,
    "has_secret": True,
    "id": "req_01HZX3V9J0",
    "ident": "apikey_12",
    "ids": ["wrkspc_platform"],
    "inference_geo": "global",
    "input": "1.25",
    "ip": "10.0.0.7",
    "ip_allow": ["10.0.0.0/8"],
    "is_active": True,
    "is_enabled": True,
    "key": "ci",
    "key_id": "apikey_12",
    "key_name": "ci",
    "last_id": "apikey_12",
    "left": "560",
    "limit": 100,
    "limit_usd": "500",
    "limits": {"rpm": 600},
    "message": "the upstream is overloaded",
    "metric": ["cost_usd"],
    "model": "claude-opus-5-5",
    "model_requested": "claude-opus-5-5",
    "model_upstream": "gpt-5.2",
    "month": "2026-10",
    "name": "ci",
    "members.id": "user_ada",
    "members.type": "workspace_member",
    "models_allowed": ["claude-*"],
    "next_page": "page_WzE3MDAwXQ",
    "object": "platform/ci",
    "notes": [],
    "object_id": "12",
    "object_kind": "key",
    "of": "team platform",
    "output": "10",
    "organization_me.id": "8f14e45f-ceea-4670-9b6a-2f1c3a5d7e90",
    "organization_me.type": "organization",
    "organization_me.name": "Messages Bridge",
    "organization_users.id": "user_ada",
    "organization_users.type": "user",
    "organization_id": "8f14e45f-ceea-4670-9b6a-2f1c3a5d7e90",
    "outcome": "completed",
    "owner": "team:platform",
    "page": "page_WzE3MDAwXQ",
    "parent_agent": "agent-0",
    "parent_agent_id": "agent-0",
    "partial_key_hint": "sk-br-abcd...",
    "passage": [{"text": "the answer", "matched": True}],
    "period": "month",
    "points": [12, 40],
    "prefix": "sk-br-abcd",
    "price": {"model": "gpt-5.2", "since": "2026-01-01", "output": "10"},
    "principal.type": "user_actor",
    "price_version": "gpt-5.2@2026-01-01",
    "priced": True,
    "profile": "openai",
    "q": '"rate limit"',
    "reason": "ticket 42",
    "refused_by": "key_rpm",
    "repository": "example/shop",
    "resource": "requests",
    "role": "user",
    "roles": ["developer"],
    "route": "claude-*",
    "scope.type": "workspace",
    "scope_type": "workspace",
    "scopes": ["messages"],
    "secret": "sk-br-3f7c0d",
    "service_account_ids": ["svac_1"],
    "service_tier": "standard",
    "iterations": [],
    "session": "d0210c9f",
    "session_id": "d0210c9f",
    "side": "request",
    "since": "2026-01-01",
    "sort": "-id",
    "search.kind": "prompt",
    "source.type": "workspace",
    "spend_limits.id": "splim_3",
    "spend_limits.type": "spend_limit",
    "source": "list price",
    "speed": "standard",
    "spend_limit_id": "splim_3",
    "state": "ok",
    "status": 200,
    "stop_reason": "end_turn",
    "stream": True,
    "subject": "ada",
    "system.kind": "text",
    "system": [{"kind": "text", "text": "You are helpful."}],
    "tag": "ticket:42",
    "tags": {"ticket": "42"},
    "takes": "4000",
    "team": "platform",
    "teams": [{"team": "platform", "member_keys": {"count": 2}, "left": 1}],
    "text": "the answer",
    "timeouts": {"connect_s": 5},
    "token_type": "output_tokens",
    "tool": "Read",
    "tool_names": ["Read"],
    "tools": [{"name": "Read", "deferred": False, "schema_sha": "9f86d081"}],
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tz": "Europe/Berlin",
    "upstream": "openai",
    "upstream_request_id": "resp_0123",
    "upstream_status": 429,
    "usage_source": "upstream",
    "unit": "requests",
    "used": "40",
    "user": "ada",
    "user_agent": "claude-cli/2.1.329 (external, cli)",
    "user_id": "user_ada",
    "value": "claude-opus-5-5",
    "version": "2.1.329",
    "when": {"min_input_tokens": 100_000},
    "worker": "node-1:4711",
    "workspaces.id": "wrkspc_platform",
    "workspaces.name": "platform",
    "workspaces.type": "workspace",
    "workspace_id": "wrkspc_platform",
    "workspace_role": "workspace_developer",
}
BY_ENDING: Final[Mapping[str, Any]] = {
    "request_id": "req_01HZX3V9J0",
    "_usd": "1.25",
    "_at": "2026-11-20T09:14:03.120Z",
    "_ms": 840,
    "_tokens": 4096,
    "_bytes": 2048,
    "_rate": 0.011,
    "_pct": 12.4,
    "_source": "reported",
    "_from": "2026-11-20",
    "from": "2026-11-20",
    "to": "2026-11-21",
    "date": "2026-11-20",
    "day": "2026-11-20",
}
BY_FORMAT: Final[Mapping[str, str]] = {
    "date-time": "2026-11-20T09:14:03.120Z",
    "date": "2026-11-20",
    "uri": "https://bridge.example/api/v1/usage/",
    "email": "ada@example.com",
    "decimal": "1.25",
}
TYPES: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
PLACEHOLDER: Final = "text"
"""The example of a text without an entry in the tables."""
Schema = dict[str, Any]


def named_example(name: str, owner: str = "") -> Any:
    """Return the example of a name, of its singular or of its ending; None without one.

    A name such as ``id``, whose values depend on the object, has an entry ``<owner>.id``.
    """
    plain = name.removeprefix("min_").removeprefix("max_")
    for one in (f"{owner}.{name}", name, name.removesuffix("s"), plain):
        if one in BY_NAME:
            return BY_NAME[one]
    return next((value for end, value in BY_ENDING.items() if name.endswith(end)), None)


def resolved(schema: Schema, schemas: Mapping[str, Schema]) -> Schema:
    """Return a schema without a reference at its top; of alternatives, the first."""
    for word in ("allOf", "oneOf", "anyOf"):
        if word in schema:
            return resolved(schema[word][0], schemas)
    name = schema.get("$ref", "").rpartition("/")[2]
    return schemas[name] if name else schema


def example_of(
    name: str, schema: Schema, schemas: Mapping[str, Schema], owner: str = "", depth: int = 0
) -> Any:
    """Return an example that is valid under the schema of the parameter or property ``name``.

    ``owner`` is the name of the object that has the property, or the resource of a whole body.
    """
    shape = resolved(schema, schemas)
    kind = shape.get("type", "")
    found = named_example(name, owner)
    if options := [one for one in shape.get("enum", ()) if one is not None]:
        return found if found in options else options[0]
    if kind == "object" or "properties" in shape:
        of_parts = owner if name in WRAPPERS else name
        parts = {
            part: example_of(part, inner, schemas, of_parts, depth + 1)
            for part, inner in shape.get("properties", {}).items()
        }
        return parts or (found if isinstance(found, dict) else {})
    if kind == "array":
        if isinstance(found, list) and shape["items"].get("type") in (None, "object"):
            return found
        items = shape["items"]
        return [] if depth > MAX_DEPTH else [example_of(name, items, schemas, owner, depth + 1)]
    return found if not kind else _scalar(found, kind, shape)


def _scalar(found: Any, kind: str, shape: Schema) -> Any:
    value = found[0] if isinstance(found, list) and found else found
    if _fits(value, kind, shape):
        return value
    if kind == "string" and shape.get("nullable"):
        return None
    if shape.get("format") in BY_FORMAT:
        return BY_FORMAT[shape["format"]]
    if kind in ("integer", "number"):
        return max(shape.get("minimum", 0), min(12, shape.get("maximum", 12)))
    return {"boolean": False, "string": PLACEHOLDER}[kind]


def _fits(value: Any, kind: str, shape: Schema) -> bool:
    """Whether a value is valid under the schema of a type that is neither array nor object."""
    if not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "boolean"):
        return False
    if isinstance(value, str):
        if shape.get("format") in ("date", "date-time"):
            return bool(("T" in value) == (shape["format"] == "date-time"))
        return bool(len(value) <= shape.get("maxLength", len(value)))
    low, high = shape.get("minimum", value), shape.get("maximum", value)
    return bool(low <= value <= high)
