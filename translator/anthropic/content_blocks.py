"""Validate the content blocks of a request, and in which messages each block type is valid.

Source: docs/mapping.md.
"""

from collections.abc import Mapping
from typing import Any, Final

from .validators import (
    Check,
    ValidationFault,
    any_value,
    boolean,
    list_by_key,
    list_of,
    mapping,
    non_empty_string,
    object_of,
    one_of,
    string,
    tagged_union,
)

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")

CACHE_CONTROL: Final = object_of({"type": one_of("ephemeral")}, {"ttl": one_of("5m", "1h")})

TEXT: Final = object_of(
    {"type": string, "text": string},
    {"citations": list_of(mapping), "cache_control": CACHE_CONTROL},
)
_TEXT_ONLY: Final = tagged_union({"text": TEXT})
TEXTS: Final = list_by_key("type", {"text": TEXT}, _TEXT_ONLY)
TEXT_OR_TEXTS: Final = list_by_key("type", {"text": TEXT}, _TEXT_ONLY, or_text=True)

IMAGE: Final = object_of(
    {
        "source": tagged_union(
            {
                "base64": object_of({"media_type": non_empty_string, "data": string}),
                "file": object_of({"file_id": non_empty_string}),
                "url": object_of({"url": non_empty_string}),
            }
        )
    },
    {"cache_control": CACHE_CONTROL, "transformations": any_value},
)

DOCUMENT_PARTS: Final = {"image": IMAGE, "text": TEXT}

DOCUMENT: Final = object_of(
    {
        "source": tagged_union(
            {
                "base64": object_of({"media_type": non_empty_string, "data": string}),
                "content": object_of(
                    {
                        "content": list_by_key(
                            "type", DOCUMENT_PARTS, tagged_union(DOCUMENT_PARTS), or_text=True
                        )
                    }
                ),
                "file": object_of({"file_id": non_empty_string}),
                "text": object_of({"data": string}),
                "url": object_of({"url": non_empty_string}),
            }
        )
    },
    {
        "cache_control": CACHE_CONTROL,
        "citations": object_of(optional={"enabled": boolean}),
        "context": string,
        "title": string,
    },
)

SEARCH_RESULT: Final = object_of(
    {"content": TEXTS, "source": string, "title": string},
    {"cache_control": CACHE_CONTROL, "citations": object_of(optional={"enabled": boolean})},
)

RESULT_PARTS: Final[Mapping[str, Check]] = {
    "browser_state": mapping,
    "document": DOCUMENT,
    "image": IMAGE,
    "search_result": SEARCH_RESULT,
    "text": TEXT,
    "tool_reference": object_of({"tool_name": non_empty_string}),
}

TOOL_RESULT: Final = object_of(
    {"tool_use_id": non_empty_string},
    {
        "cache_control": CACHE_CONTROL,
        "content": list_by_key("type", RESULT_PARTS, tagged_union(RESULT_PARTS), or_text=True),
        "is_error": boolean,
    },
)

# The gateway returns tool arguments that are not valid JSON to the client as a raw string, and
# others return null, a list or nothing. Every upstream gets an object (``object_arguments``).
TOOL_USE: Final = object_of(
    {"id": non_empty_string, "name": non_empty_string},
    {"cache_control": CACHE_CONTROL, "input": any_value},
)

DIRECT: Final = {"caller": {"type": "direct"}}
"""The field of a call by the model itself and of its result, which Anthropic sends and the types of
the TypeScript SDK demand. Other callers are programs of Anthropic's code execution."""

SERVER_RESULT: Final = object_of({"tool_use_id": non_empty_string, "content": any_value})

THINKING: Final = object_of({"thinking": string}, {"signature": string})

USER_BLOCKS: Final[Mapping[str, Check]] = {
    "container_upload": object_of({"file_id": non_empty_string}),
    "document": DOCUMENT,
    "image": IMAGE,
    "search_result": SEARCH_RESULT,
    "text": TEXT,
    "tool_result": TOOL_RESULT,
}

ASSISTANT_BLOCKS: Final[Mapping[str, Check]] = {
    "advisor_tool_result": SERVER_RESULT,
    "bash_code_execution_tool_result": SERVER_RESULT,
    "code_execution_tool_result": SERVER_RESULT,
    "compaction": object_of(optional={"content": string, "encrypted_content": string}),
    "container_upload": object_of({"file_id": non_empty_string}),
    "document": DOCUMENT,
    "fallback": mapping,
    "image": IMAGE,
    "mcp_tool_listing": mapping,
    "mcp_tool_result": object_of(
        {"tool_use_id": non_empty_string}, {"content": TEXT_OR_TEXTS, "is_error": boolean}
    ),
    "mcp_tool_use": object_of(
        {"id": non_empty_string, "name": non_empty_string, "input": any_value},
        {"server_name": string},
    ),
    "redacted_thinking": object_of({"data": string}),
    "search_result": SEARCH_RESULT,
    "server_tool_use": object_of(
        {"id": non_empty_string, "name": non_empty_string, "input": any_value}
    ),
    "text": TEXT,
    "text_editor_code_execution_tool_result": SERVER_RESULT,
    "thinking": THINKING,
    "tool_search_tool_result": SERVER_RESULT,
    "tool_use": TOOL_USE,
    "web_fetch_tool_result": SERVER_RESULT,
    "web_search_tool_result": SERVER_RESULT,
}

TOOL_CHANGE: Final = object_of(
    {"tool": object_of(optional={"definition": mapping, "name": string, "type": string})}
)

SYSTEM_BLOCKS: Final[Mapping[str, Check]] = {
    "text": TEXT,
    "tool_addition": TOOL_CHANGE,
    "tool_removal": TOOL_CHANGE,
}

BLOCKS_BY_ROLE: Final = {
    "assistant": ASSISTANT_BLOCKS,
    "system": SYSTEM_BLOCKS,
    "user": USER_BLOCKS,
}


def _content_of(role: str) -> Check:
    blocks = BLOCKS_BY_ROLE[role]
    other_roles = {
        kind: other
        for other, block_types in BLOCKS_BY_ROLE.items()
        for kind in block_types
        if kind not in blocks
    }
    return list_by_key("type", blocks, tagged_union(blocks, other_roles), or_text=True)


_MESSAGES: Final[Mapping[str, Check]] = {
    role: object_of(
        {"role": string, "content": _content_of(role)},
        {"clear_at": string, "output_config": object_of(optional={"effort": one_of(*EFFORTS)})},
    )
    for role in BLOCKS_BY_ROLE
}


def _reject_message(value: Any) -> None:
    if not isinstance(value, dict):
        raise ValidationFault("Input should be an object")
    if "role" not in value:
        raise ValidationFault("Field required", "role")
    raise ValidationFault("Input should be one of 'user', 'assistant', 'system'", "role")


MESSAGES: Final = list_by_key("role", _MESSAGES, _reject_message)
"""Checks the ``messages`` array: each message by the rules of its role."""
