"""The content blocks of a request and where each may stand (mapping.md 1.3 to 1.5)."""

from collections.abc import Mapping
from typing import Any, Final

from .shapes import (
    Check,
    Fault,
    Shape,
    Tagged,
    anything,
    boolean,
    either,
    list_of,
    mapping,
    one_of,
    string,
    text_or,
    words,
)

CACHE_CONTROL: Final = Shape({"type": one_of("ephemeral")}, {"ttl": one_of("5m", "1h")})

TEXT: Final = Shape(
    {"type": string, "text": string},
    {"citations": list_of(mapping), "cache_control": CACHE_CONTROL},
)
TEXTS: Final = list_of(Tagged({"text": TEXT}))

IMAGE: Final = Shape(
    {
        "source": Tagged(
            {
                "base64": Shape({"media_type": words, "data": string}),
                "file": Shape({"file_id": words}),
                "url": Shape({"url": words}),
            }
        )
    },
    {"cache_control": CACHE_CONTROL, "transformations": anything},
)

DOCUMENT: Final = Shape(
    {
        "source": Tagged(
            {
                "base64": Shape({"media_type": words, "data": string}),
                "content": Shape(
                    {"content": text_or(list_of(Tagged({"image": IMAGE, "text": TEXT})))}
                ),
                "file": Shape({"file_id": words}),
                "text": Shape({"data": string}),
                "url": Shape({"url": words}),
            }
        )
    },
    {
        "cache_control": CACHE_CONTROL,
        "citations": Shape(optional={"enabled": boolean}),
        "context": string,
        "title": string,
    },
)

SEARCH_RESULT: Final = Shape(
    {"content": TEXTS, "source": string, "title": string},
    {"cache_control": CACHE_CONTROL, "citations": Shape(optional={"enabled": boolean})},
)

RESULT_PARTS: Final = Tagged(
    {
        "browser_state": mapping,
        "document": DOCUMENT,
        "image": IMAGE,
        "search_result": SEARCH_RESULT,
        "text": TEXT,
        "tool_reference": Shape({"tool_name": words}),
    }
)

TOOL_RESULT: Final = Shape(
    {"tool_use_id": words},
    {
        "cache_control": CACHE_CONTROL,
        "content": text_or(list_of(RESULT_PARTS)),
        "is_error": boolean,
    },
)

# Arguments that did not parse reach clients as the raw string, and come back as one.
TOOL_USE: Final = Shape(
    {"id": words, "name": words, "input": either(string, mapping)},
    {"cache_control": CACHE_CONTROL},
)

SERVER_RESULT: Final = Shape({"tool_use_id": words, "content": anything})

THINKING: Final = Shape({"thinking": string}, {"signature": string})

USER_BLOCKS: Final[Mapping[str, Check]] = {
    "container_upload": Shape({"file_id": words}),
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
    "compaction": Shape(optional={"content": string, "encrypted_content": string}),
    "container_upload": Shape({"file_id": words}),
    "document": DOCUMENT,
    "fallback": mapping,
    "image": IMAGE,
    "mcp_tool_listing": mapping,
    "mcp_tool_result": Shape(
        {"tool_use_id": words}, {"content": text_or(TEXTS), "is_error": boolean}
    ),
    "mcp_tool_use": Shape({"id": words, "name": words, "input": mapping}, {"server_name": string}),
    "redacted_thinking": Shape({"data": string}),
    "search_result": SEARCH_RESULT,
    "server_tool_use": Shape({"id": words, "name": words, "input": mapping}),
    "text": TEXT,
    "text_editor_code_execution_tool_result": SERVER_RESULT,
    "thinking": THINKING,
    "tool_search_tool_result": SERVER_RESULT,
    "tool_use": TOOL_USE,
    "web_fetch_tool_result": SERVER_RESULT,
    "web_search_tool_result": SERVER_RESULT,
}

TOOL_CHANGE: Final = Shape(
    {"tool": Shape(optional={"definition": mapping, "name": string, "type": string})}
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
    known = Tagged(blocks)
    elsewhere = {
        kind: other
        for other, kinds in BLOCKS_BY_ROLE.items()
        for kind in kinds
        if kind not in blocks
    }

    def check(block: Any) -> None:
        try:
            known(block)
        except Fault:
            kind = block.get("type") if isinstance(block, dict) else None
            if isinstance(kind, str) and kind in elsewhere:
                raise Fault(
                    f"`{kind}` blocks can only be in `{elsewhere[kind]}` messages", "type"
                ) from None
            raise

    return text_or(list_of(check))


_MESSAGES: Final[Mapping[str, Shape]] = {
    role: Shape(
        {"role": string, "content": _content_of(role)},
        {"clear_at": string, "output_config": mapping},
    )
    for role in BLOCKS_BY_ROLE
}


def message(value: Any) -> None:
    """Check one message of a conversation, by its role."""
    role = value.get("role") if isinstance(value, dict) else None
    shape = _MESSAGES.get(role) if isinstance(role, str) else None
    if shape is not None:
        shape(value)
    elif not isinstance(value, dict):
        raise Fault("Input should be an object")
    elif "role" not in value:
        raise Fault("Field required", "role")
    else:
        raise Fault("Input should be one of 'user', 'assistant', 'system'", "role")
