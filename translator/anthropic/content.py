"""The content blocks of a request and where each may stand (mapping.md 1.3 to 1.5)."""

from collections.abc import Mapping
from typing import Any, Final

from .shapes import (
    Check,
    Fault,
    anything,
    boolean,
    either,
    list_by,
    list_of,
    mapping,
    one_of,
    shape,
    string,
    tagged,
    words,
)

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")

CACHE_CONTROL: Final = shape({"type": one_of("ephemeral")}, {"ttl": one_of("5m", "1h")})

TEXT: Final = shape(
    {"type": string, "text": string},
    {"citations": list_of(mapping), "cache_control": CACHE_CONTROL},
)
_TEXT_ONLY: Final = tagged({"text": TEXT})
TEXTS: Final = list_by("type", {"text": TEXT}, _TEXT_ONLY)
TEXT_OR_TEXTS: Final = list_by("type", {"text": TEXT}, _TEXT_ONLY, or_text=True)

IMAGE: Final = shape(
    {
        "source": tagged(
            {
                "base64": shape({"media_type": words, "data": string}),
                "file": shape({"file_id": words}),
                "url": shape({"url": words}),
            }
        )
    },
    {"cache_control": CACHE_CONTROL, "transformations": anything},
)

DOCUMENT_PARTS: Final = {"image": IMAGE, "text": TEXT}

DOCUMENT: Final = shape(
    {
        "source": tagged(
            {
                "base64": shape({"media_type": words, "data": string}),
                "content": shape(
                    {
                        "content": list_by(
                            "type", DOCUMENT_PARTS, tagged(DOCUMENT_PARTS), or_text=True
                        )
                    }
                ),
                "file": shape({"file_id": words}),
                "text": shape({"data": string}),
                "url": shape({"url": words}),
            }
        )
    },
    {
        "cache_control": CACHE_CONTROL,
        "citations": shape(optional={"enabled": boolean}),
        "context": string,
        "title": string,
    },
)

SEARCH_RESULT: Final = shape(
    {"content": TEXTS, "source": string, "title": string},
    {"cache_control": CACHE_CONTROL, "citations": shape(optional={"enabled": boolean})},
)

RESULT_PARTS: Final[Mapping[str, Check]] = {
    "browser_state": mapping,
    "document": DOCUMENT,
    "image": IMAGE,
    "search_result": SEARCH_RESULT,
    "text": TEXT,
    "tool_reference": shape({"tool_name": words}),
}

TOOL_RESULT: Final = shape(
    {"tool_use_id": words},
    {
        "cache_control": CACHE_CONTROL,
        "content": list_by("type", RESULT_PARTS, tagged(RESULT_PARTS), or_text=True),
        "is_error": boolean,
    },
)

# Arguments that did not parse reach clients as the raw string, and come back as one.
TOOL_USE: Final = shape(
    {"id": words, "name": words, "input": either(string, mapping)},
    {"cache_control": CACHE_CONTROL},
)

SERVER_RESULT: Final = shape({"tool_use_id": words, "content": anything})

THINKING: Final = shape({"thinking": string}, {"signature": string})

USER_BLOCKS: Final[Mapping[str, Check]] = {
    "container_upload": shape({"file_id": words}),
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
    "compaction": shape(optional={"content": string, "encrypted_content": string}),
    "container_upload": shape({"file_id": words}),
    "document": DOCUMENT,
    "fallback": mapping,
    "image": IMAGE,
    "mcp_tool_listing": mapping,
    "mcp_tool_result": shape(
        {"tool_use_id": words}, {"content": TEXT_OR_TEXTS, "is_error": boolean}
    ),
    "mcp_tool_use": shape({"id": words, "name": words, "input": mapping}, {"server_name": string}),
    "redacted_thinking": shape({"data": string}),
    "search_result": SEARCH_RESULT,
    "server_tool_use": shape({"id": words, "name": words, "input": mapping}),
    "text": TEXT,
    "text_editor_code_execution_tool_result": SERVER_RESULT,
    "thinking": THINKING,
    "tool_search_tool_result": SERVER_RESULT,
    "tool_use": TOOL_USE,
    "web_fetch_tool_result": SERVER_RESULT,
    "web_search_tool_result": SERVER_RESULT,
}

TOOL_CHANGE: Final = shape(
    {"tool": shape(optional={"definition": mapping, "name": string, "type": string})}
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
    elsewhere = {
        kind: other
        for other, kinds in BLOCKS_BY_ROLE.items()
        for kind in kinds
        if kind not in blocks
    }
    return list_by("type", blocks, tagged(blocks, elsewhere), or_text=True)


_MESSAGES: Final[Mapping[str, Check]] = {
    role: shape(
        {"role": string, "content": _content_of(role)},
        {"clear_at": string, "output_config": shape(optional={"effort": one_of(*EFFORTS)})},
    )
    for role in BLOCKS_BY_ROLE
}


def _no_message(value: Any) -> None:
    if not isinstance(value, dict):
        raise Fault("Input should be an object")
    if "role" not in value:
        raise Fault("Field required", "role")
    raise Fault("Input should be one of 'user', 'assistant', 'system'", "role")


MESSAGES: Final = list_by("role", _MESSAGES, _no_message)
"""A conversation: each message by its role."""
