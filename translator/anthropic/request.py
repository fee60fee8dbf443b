"""The one checked door for client requests: behind it nobody re-checks.

A body that is accepted is returned as it is; one that is not raises BadRequest with the path and
Anthropic's own words. Source: Anthropic documentation, "Messages"; mapping.md 1.2 and 1.5.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.errors import BadRequest

from .content import CACHE_CONTROL, EFFORTS, MESSAGES, TEXT_OR_TEXTS
from .shapes import (
    Check,
    Fault,
    anything,
    boolean,
    either,
    integer,
    list_of,
    mapping,
    model_name,
    number,
    one_of,
    shape,
    short_name,
    string,
    tagged,
    words,
)
from .tools import TOOL_CHOICE, check_inline_tools, check_tool_names, tool
from .types import MessagesRequest

VERSION: Final = "2023-06-01"
"""What a client speaks that does not say; also the rules for versions that we do not know."""

WITHOUT_SAMPLING: Final = "2026-10-21"
"""From this version on sampling parameters and a few old block places are gone."""

NO_DATE: Final = "3"
"""Versions are dates; whatever sorts behind them is a word that we do not know."""

MAX_MESSAGES: Final = 100_000
MIN_BUDGET: Final = 1024
MAX_STOP_SEQUENCE: Final = 4096
MAX_USER_ID: Final = 256

SAMPLING: Final = ("temperature", "top_p", "top_k")


def _stop_sequence(value: Any) -> None:
    string(value)
    if not value.strip():
        raise Fault("each stop sequence must contain non-whitespace")
    if len(value) > MAX_STOP_SEQUENCE:
        raise Fault(f"String should have at most {MAX_STOP_SEQUENCE} characters")


def _user_id(value: Any) -> None:
    string(value)
    if len(value) > MAX_USER_ID:
        raise Fault(f"String should have at most {MAX_USER_ID} characters")


def _budget(value: Any) -> None:
    integer(MIN_BUDGET)(value)


_DISPLAY: Final[Mapping[str, Check]] = {"display": string, "block_binding": anything}

THINKING: Final = tagged(
    {
        "adaptive": shape(optional=_DISPLAY),
        "between_tools": shape(optional=_DISPLAY),
        "disabled": mapping,
        "enabled": shape({"budget_tokens": _budget}, _DISPLAY),
    }
)

FORMAT: Final = tagged({"json_schema": shape({"schema": mapping})})

_TRIGGER: Final = shape({"type": words, "value": integer(0)})

CONTEXT_MANAGEMENT: Final = shape(
    optional={"edits": list_of(shape({"type": words}, {"trigger": _TRIGGER}))}
)

MCP_SERVER: Final = shape(
    {"name": short_name, "url": words},
    {
        "authorization_token": string,
        "tool_configuration": shape(
            optional={"allowed_tools": list_of(string), "enabled": boolean}
        ),
    },
)

FIELDS: Final[Mapping[str, Check]] = {
    "billing_policy": anything,
    "cache_control": CACHE_CONTROL,
    "compaction": mapping,
    "container": either(string, mapping),
    "context_management": CONTEXT_MANAGEMENT,
    "diagnostics": mapping,
    "fallback_credit_token": string,
    "fallbacks": anything,
    "inference_geo": string,
    "max_tokens": integer(0),
    "mcp_servers": list_of(MCP_SERVER),
    "messages": MESSAGES,
    "metadata": shape(optional={"user_id": _user_id}),
    "model": model_name,
    "output_config": shape(optional={"effort": one_of(*EFFORTS), "format": FORMAT}),
    "output_format": FORMAT,
    "service_tier": one_of("auto", "standard_only"),
    "speed": one_of("standard", "fast"),
    "stop_sequences": list_of(_stop_sequence),
    "stream": boolean,
    "system": TEXT_OR_TEXTS,
    "temperature": number(0, 1),
    "thinking": THINKING,
    "thread": anything,
    "tool_choice": TOOL_CHOICE,
    "tools": list_of(tool),
    "top_k": integer(0),
    "top_p": number(0, 1),
}
"""Every field of a request that has a meaning; each dialect gives each of them one fate."""

_IN_MESSAGES: Final = ("model", "messages", "max_tokens")
_IN_COUNT: Final = ("model", "messages")


def _fields(*required: str) -> Check:
    return shape(
        {name: FIELDS[name] for name in required},
        {name: check for name, check in FIELDS.items() if name not in required},
    )


_FOR_AN_ANSWER: Final = _fields(*_IN_MESSAGES)
_FOR_A_COUNT: Final = _fields(*_IN_COUNT)
_FOR_TRANSLATION: Final = _fields("messages")


def parse_messages_request(raw: Any, *, version: str = VERSION) -> MessagesRequest:
    """Check a decoded body of ``POST /v1/messages``; ``version`` is the client's API version."""
    return _checked(raw, _FOR_AN_ANSWER, version)


def parse_count_tokens_request(raw: Any, *, version: str = VERSION) -> MessagesRequest:
    """Check a decoded body of ``POST /v1/messages/count_tokens``: it has no ``max_tokens``."""
    return _checked(raw, _FOR_A_COUNT, version)


def check_for_translation(raw: Any) -> MessagesRequest:
    """Check as much as the dialects rely on; the library's callers may fill in the rest later."""
    return _checked(raw, _FOR_TRANSLATION, VERSION)


def unknown_fields(request: MessagesRequest) -> list[str]:
    """Top-level keys that mean nothing to us: tolerated, told, refused in strict mode."""
    return [name for name in request if name not in FIELDS]


def _checked(raw: Any, check: Check, version: str) -> MessagesRequest:
    if not isinstance(raw, dict):
        raise BadRequest("", "the request body must be a JSON object")
    if "thread" in raw and raw["thread"] is not None:
        # The SDKs know this code and send the whole conversation again, without a thread.
        raise BadRequest(
            "thread",
            "message threads are not supported here; send the whole conversation",
            error_code="thread_unsupported_request",
        )
    try:
        check(raw)
        newer = WITHOUT_SAMPLING <= version < NO_DATE
        for rule, names in NEW_RULES if newer else OLD_RULES:
            for name in names:
                if name in raw:
                    rule(raw)
                    break
    except Fault as fault:
        raise BadRequest(".".join(fault.path), fault.message) from None
    return raw


def _conversation(request: MessagesRequest) -> None:
    messages = request["messages"]
    if not messages:
        raise Fault("at least one message is required", "messages")
    if len(messages) > MAX_MESSAGES:
        raise Fault(f"at most {MAX_MESSAGES} messages are allowed", "messages")


def _user_begins(request: MessagesRequest) -> None:
    if request["messages"][0]["role"] == "user":
        return
    role = next((m["role"] for m in request["messages"] if m["role"] != "system"), None)
    if role != "user":
        raise Fault('first message must use the "user" role', "messages")


def _thinking(request: MessagesRequest) -> None:
    thinking = request.get("thinking")
    if not thinking or thinking["type"] != "enabled":
        return
    limit = request.get("max_tokens")
    # With tools the budget may span several answers (interleaved thinking).
    if limit is not None and thinking["budget_tokens"] >= limit and not request.get("tools"):
        raise Fault("`max_tokens` must be greater than `thinking.budget_tokens`", "max_tokens")
    choice = request.get("tool_choice")
    if choice and choice["type"] in ("any", "tool"):
        raise Fault("Thinking may not be enabled when tool_choice forces tool use.", "thinking")


def _no_sampling(request: MessagesRequest) -> None:
    for name in SAMPLING:
        if request.get(name) is not None:
            raise Fault("Extra inputs are not permitted", name)


def _no_old_places(request: MessagesRequest) -> None:
    for number_, each in enumerate(request["messages"]):
        if isinstance(each["content"], str):
            continue
        for part, block in enumerate(each["content"]):
            path = ("messages", str(number_), "content", str(part))
            if each["role"] == "assistant" and block["type"] == "document":
                raise Fault("document blocks are not permitted in assistant turns", *path)
            if each["role"] == "user" and block["type"] == "text" and block.get("citations"):
                raise Fault("Extra inputs are not permitted", *path, "citations")


Rules = tuple[tuple[Callable[[MessagesRequest], None], tuple[str, ...]], ...]
"""Each with the fields that call for it, any of them."""

RULES: Final[Rules] = (
    (_conversation, ("messages",)),
    (_thinking, ("thinking",)),
    (check_inline_tools, ("messages",)),
    (check_tool_names, ("tools", "tool_choice")),
)
OLD_RULES: Final[Rules] = (*RULES, (_user_begins, ("messages",)))
NEW_RULES: Final[Rules] = (*RULES, (_no_sampling, SAMPLING), (_no_old_places, ("messages",)))
