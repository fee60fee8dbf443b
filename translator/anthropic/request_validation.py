"""Validate client requests; later code relies on these checks and does not repeat them.

A valid body is returned unchanged. An invalid body raises BadRequest with the path of the invalid
field and Anthropic's own error message. Source: Anthropic documentation, "Messages";
docs/mapping.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.errors import BadRequest

from .content_blocks import CACHE_CONTROL, EFFORTS, MESSAGES, TEXT_OR_TEXTS
from .validators import (
    UNSET,
    Check,
    ValidationFault,
    any_of,
    any_value,
    boolean,
    integer,
    list_of,
    mapping,
    mapping_of,
    model_name,
    non_empty_string,
    number,
    object_of,
    one_of,
    or_unset,
    short_name,
    shorten,
    string,
    tagged_union,
)

_COMMON: Final[Mapping[str, Check]] = {
    "allowed_callers": list_of(string),
    "cache_control": CACHE_CONTROL,
    "defer_loading": boolean,
    "eager_input_streaming": boolean,
    "input_examples": list_of(mapping),
    "strict": boolean,
}

_NAMED: Final = object_of({"name": short_name}, _COMMON)

_CUSTOM: Final = object_of(
    {"name": short_name}, {"description": string, "input_schema": mapping, **_COMMON}
)


def _check_domain_lists(tool: dict[str, Any]) -> None:
    if tool.get("allowed_domains") and tool.get("blocked_domains"):
        raise ValidationFault("Only one of allowed_domains and blocked_domains may be given")


_WEB: Final = object_of(
    {"name": short_name},
    {
        "allowed_domains": list_of(string),
        "blocked_domains": list_of(string),
        "max_uses": integer(1),
        "user_location": mapping,
        **_COMMON,
    },
    _check_domain_lists,
)

_ENABLED: Final = object_of(optional={"defer_loading": boolean, "enabled": boolean})

_MCP: Final = object_of(
    {"mcp_server_name": short_name},
    {
        "cache_control": CACHE_CONTROL,
        "configs": mapping_of(_ENABLED),
        "default_config": _ENABLED,
        "name": string,
    },
)

_UNNAMED: Final = object_of(
    optional={"cache_control": CACHE_CONTROL, "configs": any_value, "name": string}
)

TOOL_CHECKS: Final[Mapping[str, Check]] = {
    "advisor": _NAMED,
    "bash_": _NAMED,
    "browser_toolset": _UNNAMED,
    "code_execution": _NAMED,
    "computer_toolset": _UNNAMED,
    "computer_": _NAMED,
    "mcp_toolset": _MCP,
    "memory_": _NAMED,
    "text_editor_": _NAMED,
    "tool_search_tool": _NAMED,
    "web_fetch": _WEB,
    "web_search": _WEB,
}
"""Checks by prefix of the tool's ``type``, because types end in a date; the first match applies."""

TOOLSETS: Final = ("browser_toolset", "computer_toolset", "mcp_toolset")
"""Tools of these types define further tools, whose names the request does not list."""


def check_tool(value: Any) -> None:
    if type(value) is dict and "type" not in value:  # nearly every tool is like this
        _CUSTOM(value)
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None or kind == "custom":
        _CUSTOM(value)
        return
    if not isinstance(kind, str):
        raise ValidationFault("Input should be a valid string", "type")
    for prefix, check in TOOL_CHECKS.items():
        if kind.startswith(prefix):
            check(value)
            return
    raise ValidationFault(f"{shorten(kind)!r} is no known type of tool", "type")


TOOL_CHOICE: Final = tagged_union(
    {
        "any": object_of(optional={"disable_parallel_tool_use": boolean}),
        "auto": object_of(optional={"disable_parallel_tool_use": boolean}),
        "none": any_value,
        "tool": object_of({"name": short_name}, {"disable_parallel_tool_use": boolean}),
    }
)


def check_inline_tools(request: dict[str, Any]) -> None:
    """Check the tools that system messages add in mid-conversation."""
    for place, block_place, change in tool_changes(request):
        if change["tool"].get("type") != "tool_definition":
            continue
        path = ("messages", str(place), "content", str(block_place), "tool")
        if "definition" not in change["tool"]:
            raise ValidationFault("Field required", *path, "definition")
        try:
            check_tool(change["tool"]["definition"])
        except ValidationFault as fault:
            raise ValidationFault(fault.message, *path, "definition", *fault.path) from None


def check_tool_names(request: dict[str, Any]) -> None:
    """Check that tool names are unique, and that ``tool_choice`` names an existing tool."""
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not tools and not choice:
        return
    names = [definition["name"] for definition in tools or () if "name" in definition]
    known_names = {name for name in names if name is not None}
    if len(known_names) + names.count(None) < len(names):
        earlier: set[str] = set()
        for number, name in enumerate(definition.get("name") for definition in tools or ()):
            if name in earlier:
                raise ValidationFault("Tool names must be unique", "tools", str(number), "name")
            if name is not None:
                earlier.add(name)
    if not choice or choice["type"] != "tool" or choice["name"] in known_names:
        return
    added = {
        str((change["tool"].get("definition") or change["tool"]).get("name"))
        for _, _, change in tool_changes(request)
        if change["type"] == "tool_addition"
    }
    has_toolset = any(str(tool.get("type")).startswith(TOOLSETS) for tool in tools or ())
    if choice["name"] not in added and not has_toolset:
        raise ValidationFault(
            f"Tool {shorten(choice['name'])!r} not found in provided tools", "tool_choice", "name"
        )


TOOL_CHANGES: Final = frozenset({"tool_addition", "tool_removal"})


def tool_changes(request: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the blocks that change the tools in mid-conversation, with message and block index."""
    for place, message in enumerate(request["messages"]):
        if message["role"] == "system" and isinstance(message["content"], list):
            for block_place, block in enumerate(message["content"]):
                if block["type"] in TOOL_CHANGES:
                    yield place, block_place, block


VERSION: Final = "2023-06-01"
"""The API version if the client sends no ``anthropic-version``. Its rules also apply to requests
with an unknown version."""

WITHOUT_SAMPLING: Final = "2026-10-21"
"""From this API version on, a request is invalid if it has sampling parameters, a ``document``
block in an assistant turn, or ``citations`` on a text block of a user."""

NOT_A_DATE: Final = "3"
"""API versions are dates; a string that sorts after this one is no date, so the version is
unknown."""

MAX_MESSAGES: Final = 100_000
MIN_BUDGET: Final = 1024
MAX_STOP_SEQUENCE: Final = 4096
MAX_USER_ID: Final = 256

SAMPLING: Final = ("temperature", "top_p", "top_k")


def _check_stop_sequence(value: Any) -> None:
    string(value)
    if not value.strip():
        raise ValidationFault("each stop sequence must contain non-whitespace")
    if len(value) > MAX_STOP_SEQUENCE:
        raise ValidationFault(f"String should have at most {MAX_STOP_SEQUENCE} characters")


def _check_user_id(value: Any) -> None:
    string(value)
    if len(value) > MAX_USER_ID:
        raise ValidationFault(f"String should have at most {MAX_USER_ID} characters")


def _check_budget(value: Any) -> None:
    integer(MIN_BUDGET)(value)


_DISPLAY: Final[Mapping[str, Check]] = {"display": string, "block_binding": any_value}

THINKING: Final = tagged_union(
    {
        "adaptive": object_of(optional=_DISPLAY),
        "between_tools": object_of(optional=_DISPLAY),
        "disabled": mapping,
        "enabled": object_of({"budget_tokens": _check_budget}, _DISPLAY),
    }
)

FORMAT: Final = tagged_union({"json_schema": object_of({"schema": mapping})})

_TRIGGER: Final = object_of({"type": non_empty_string, "value": integer(0)})

CONTEXT_MANAGEMENT: Final = object_of(
    optional={"edits": list_of(object_of({"type": non_empty_string}, {"trigger": _TRIGGER}))}
)

MCP_SERVER: Final = object_of(
    {"name": short_name, "url": non_empty_string},
    {
        "authorization_token": string,
        "tool_configuration": object_of(
            optional={"allowed_tools": list_of(string), "enabled": boolean}
        ),
    },
)

FIELDS: Final[Mapping[str, Check]] = {
    "billing_policy": any_value,
    "cache_control": CACHE_CONTROL,
    "compaction": mapping,
    "container": any_of(string, mapping),
    "context_management": CONTEXT_MANAGEMENT,
    "diagnostics": mapping,
    "fallback_credit_token": string,
    "fallbacks": any_value,
    "inference_geo": string,
    "max_tokens": integer(0),
    "mcp_servers": list_of(MCP_SERVER),
    "messages": MESSAGES,
    "metadata": object_of(optional={"user_id": _check_user_id}),
    "model": model_name,
    "output_config": object_of(optional={"effort": one_of(*EFFORTS), "format": FORMAT}),
    "output_format": FORMAT,
    "safeguards": any_value,
    "service_tier": one_of("auto", "standard_only"),
    "speed": one_of("standard", "fast"),
    "stop_sequences": list_of(_check_stop_sequence),
    "stream": boolean,
    "system": TEXT_OR_TEXTS,
    "tags": any_value,
    "temperature": number(0, 1),
    "thinking": THINKING,
    "thread": any_value,
    "tool_choice": TOOL_CHOICE,
    "tools": list_of(check_tool),
    "top_k": or_unset(integer(0)),
    "top_p": or_unset(number(0, 1)),
}
"""Every known request field. The tables of each dialect (target API) define exactly one treatment
of each field."""

_MESSAGES_REQUIRED: Final = ("model", "messages", "max_tokens")
_COUNT_REQUIRED: Final = ("model", "messages")


def _request_check(*required: str) -> Check:
    return object_of(
        {name: FIELDS[name] for name in required},
        {name: check for name, check in FIELDS.items() if name not in required},
    )


_MESSAGES_CHECK: Final = _request_check(*_MESSAGES_REQUIRED)
_COUNT_CHECK: Final = _request_check(*_COUNT_REQUIRED)
_TRANSLATION_CHECK: Final = _request_check("messages")
_ROUTING_CHECK: Final = object_of({"model": model_name})


def parse_messages_request(raw: Any, *, version: str = VERSION) -> MessagesRequest:
    """Validate a decoded body of ``POST /v1/messages``; ``version`` is the client's API version."""
    return _validate(raw, _MESSAGES_CHECK, version)


def parse_count_tokens_request(raw: Any, *, version: str = VERSION) -> MessagesRequest:
    """Validate a decoded body of ``POST /v1/messages/count_tokens``; ``max_tokens`` is optional."""
    return _validate(raw, _COUNT_CHECK, version)


def check_for_translation(raw: Any) -> MessagesRequest:
    """Validate the fields that request translation reads; only ``messages`` is required."""
    return _validate(raw, _TRANSLATION_CHECK, VERSION)


def check_for_routing(raw: Any) -> MessagesRequest:
    """Validate only what the choice of an upstream needs: an object that names a model.

    An Anthropic upstream gets any such body as it came, and checks it itself.
    """
    return _validate(raw, _ROUTING_CHECK, VERSION, rules=())


def unknown_fields(request: MessagesRequest) -> list[str]:
    """Return unknown top-level fields.

    The gateway drops these fields with a note, or rejects the request in strict mode.
    """
    return [name for name in request if name not in FIELDS]


def _validate(
    raw: Any, check: Check, version: str, *, rules: "Rules | None" = None
) -> MessagesRequest:
    if not isinstance(raw, dict):
        raise BadRequest("", "the request body must be a JSON object")
    if "thread" in raw and raw["thread"] is not None:
        # The Anthropic SDKs react to this error code: they repeat the request with the whole
        # conversation instead of a thread.
        raise BadRequest(
            "thread",
            "message threads are not supported here; send the whole conversation",
            error_code="thread_unsupported_request",
        )
    try:
        check(raw)
        if rules is None:
            rules = NEW_RULES if WITHOUT_SAMPLING <= version < NOT_A_DATE else OLD_RULES
        for rule, names in rules:
            for name in names:
                if name in raw:
                    rule(raw)
                    break
    except ValidationFault as fault:
        raise BadRequest(".".join(fault.path), fault.message) from None
    return raw


def _check_conversation(request: MessagesRequest) -> None:
    messages = request["messages"]
    if not messages:
        raise ValidationFault("at least one message is required", "messages")
    if len(messages) > MAX_MESSAGES:
        raise ValidationFault(f"at most {MAX_MESSAGES} messages are allowed", "messages")


def _check_first_role(request: MessagesRequest) -> None:
    if request["messages"][0]["role"] == "user":
        return
    role = next((m["role"] for m in request["messages"] if m["role"] != "system"), None)
    if role != "user":
        raise ValidationFault('first message must use the "user" role', "messages")


def _check_thinking(request: MessagesRequest) -> None:
    thinking = request.get("thinking")
    if not thinking or thinking["type"] != "enabled":
        return
    limit = request.get("max_tokens")
    # With tools, ``budget_tokens`` may exceed ``max_tokens``, because the budget may cover several
    # responses (interleaved thinking).
    if limit is not None and thinking["budget_tokens"] >= limit and not request.get("tools"):
        raise ValidationFault(
            "`max_tokens` must be greater than `thinking.budget_tokens`", "max_tokens"
        )
    choice = request.get("tool_choice")
    if choice and choice["type"] in ("any", "tool"):
        raise ValidationFault(
            "Thinking may not be enabled when tool_choice forces tool use.", "thinking"
        )


def _reject_sampling(request: MessagesRequest) -> None:
    for name in SAMPLING:
        if request.get(name) not in (None, UNSET):
            raise ValidationFault("Extra inputs are not permitted", name)


def _reject_old_block_places(request: MessagesRequest) -> None:
    for message_number, message in enumerate(request["messages"]):
        if isinstance(message["content"], str):
            continue
        for block_number, block in enumerate(message["content"]):
            path = ("messages", str(message_number), "content", str(block_number))
            if message["role"] == "assistant" and block["type"] == "document":
                raise ValidationFault("document blocks are not permitted in assistant turns", *path)
            if message["role"] == "user" and block["type"] == "text" and block.get("citations"):
                raise ValidationFault("Extra inputs are not permitted", *path, "citations")


Rules = tuple[tuple[Callable[[MessagesRequest], None], tuple[str, ...]], ...]
"""Checks of the request, each with the request fields that trigger it."""

RULES: Final[Rules] = (
    (_check_conversation, ("messages",)),
    (_check_thinking, ("thinking",)),
    (check_inline_tools, ("messages",)),
    (check_tool_names, ("tools", "tool_choice")),
)
OLD_RULES: Final[Rules] = (*RULES, (_check_first_role, ("messages",)))
NEW_RULES: Final[Rules] = (
    *RULES,
    (_reject_sampling, SAMPLING),
    (_reject_old_block_places, ("messages",)),
)
