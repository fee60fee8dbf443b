"""Prepare a Messages request for an Anthropic upstream.

Only content made by or for other upstreams is removed. The request may contain fields, blocks and
values that this version does not know, of any shape: the upstream checks them. Unchanged parts
remain the same Python objects, so that the gateway can send the client's original bytes: signatures
and prompt caches depend on identical bytes. Source: docs/mapping.md.
"""

from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.anthropic.request_validation import SAMPLING
from translator.anthropic.validators import UNSET
from translator.capabilities import Profile
from translator.dialect import ResponseContext, TranslationTarget, UpstreamRequest
from translator.errors import BadRequest
from translator.notes import Note
from translator.request.builder import REPAIRED, UNSET_PARAMETER, object_arguments
from translator.request.text_fallbacks import tool_error_text
from translator.request.tool_support import find_server_tool
from translator.stream.reasoning_signature import is_own_signature
from translator.web_search.results import is_own_content

Block = dict[str, Any]

BLANK_TEXT: Final = "a text of white space alone, which Anthropic refuses"

CALLS: Final = frozenset({"mcp_tool_use", "server_tool_use", "tool_use"})
"""Types of blocks whose ``input`` must be an object."""


def build_request(request: MessagesRequest, target: TranslationTarget) -> UpstreamRequest:
    """Set the target's model; drop the gateway's signatures and blocks from other upstreams."""
    notes: list[Note] = []
    body = dict(request)
    if target.model:
        body["model"] = target.model
    profile = target.profile
    messages, changed = _rewrite_messages(_list(request.get("messages")), profile, notes)
    if changed:
        body["messages"] = messages
    if isinstance(request.get("system"), list):
        body["system"] = _without_blank_texts(request["system"], "system", notes)
    unset = [name for name in SAMPLING if body.get(name) == UNSET]
    for name in unset:
        del body[name]
    notes += [Note(name, *UNSET_PARAMETER) for name in unset]
    notes += _apply_profile(body, profile)
    return UpstreamRequest(
        body=body,
        notes=tuple(notes),
        response_context=ResponseContext(
            model=request.get("model", ""), target=target, max_tokens=request.get("max_tokens")
        ),
    )


def _apply_profile(body: dict[str, Any], profile: Profile) -> list[Note]:
    """Drop from ``body`` the fields that the server does not support (docs/mapping.md)."""
    if "inference_geo" in profile.refused_fields and body.get("inference_geo"):
        raise BadRequest("inference_geo", "this upstream does not support the field")
    notes = [
        Note(name, "dropped", "this upstream does not support the field")
        for name in profile.refused_fields
        if body.pop(name, None) is not None
    ]
    if not profile.server_tools:
        notes += _remove_server_tools(body)
    if not profile.mid_system:
        messages = _list(body.get("messages"))
        notes += [
            Note(f"messages.{number}.role", "emulated", "system text is sent as a user message")
            for number, message in enumerate(messages)
            if _field(message, "role") == "system"
        ]
        if messages:
            body["messages"] = [
                {"role": "user", "content": message.get("content")}
                if _field(message, "role") == "system"
                else message
                for message in messages
            ]
    return notes


def _remove_server_tools(body: dict[str, Any]) -> list[Note]:
    tools = _list(body.get("tools"))
    removed = {
        number: tool
        for number, tool in enumerate(tools)
        if isinstance(kind := _field(tool, "type"), str) and find_server_tool(kind)
    }
    forced_name = _field(body.get("tool_choice"), "name")
    is_forced = forced_name and any(tool.get("name") == forced_name for tool in removed.values())
    if is_forced:
        raise BadRequest("tool_choice.name", f"this upstream does not run {forced_name!r}")
    if removed:
        body["tools"] = [tool for n, tool in enumerate(tools) if n not in removed]
    return [
        Note(f"tools.{number}", "dropped", "this upstream does not run server tools")
        for number in removed
    ]


def _rewrite_messages(
    received: list[Any], profile: Profile, notes: list[Note]
) -> tuple[list[Any], bool]:
    """Return the messages, and whether any was changed; a message without content is dropped.

    The last message stays as it came: without it the request would have another meaning, so the
    upstream refuses what is empty.
    """
    messages: list[Any] = []
    changed = False
    for number, message in enumerate(received):
        rewritten = _rewrite_message(message, f"messages.{number}", profile, notes)
        if rewritten is None and number == len(received) - 1 and _field(message, "role") == "user":
            rewritten = message
        changed = changed or rewritten is not message
        if rewritten is not None:
            messages.append(rewritten)
    return messages, changed


def _rewrite_message(message: Any, path: str, profile: Profile, notes: list[Note]) -> Any:
    """Return the message, as the same object if unchanged; None if no content block is left."""
    content = _field(message, "content")
    if _field(message, "role") == "assistant" and isinstance(content, str) and content.isspace():
        notes.append(Note(f"{path}.content", "ignored", BLANK_TEXT))
        return None
    if not isinstance(content, list):
        return message
    is_assistant = _field(message, "role") == "assistant"
    foreign_searches = _foreign_search_ids(content) if is_assistant else []
    blocks: list[Block] = []
    changed = False
    for number, block in enumerate(content):
        reason = _drop_reason(block, foreign_searches, profile) if is_assistant else ""
        if _is_blank_text(block):
            reason = BLANK_TEXT
        if reason:
            notes.append(Note(f"{path}.content.{number}", "ignored", reason))
            changed = True
            continue
        rewritten = _rewrite_block(block, f"{path}.content.{number}", notes)
        changed = changed or rewritten is not block
        blocks.append(rewritten)
    if not changed:
        return message
    return {**message, "content": blocks} if blocks else None


def _without_blank_texts(blocks: list[Any], path: str, notes: list[Note]) -> list[Any]:
    """Return the blocks without texts of white space; the same object if there are none."""
    blank = [number for number, block in enumerate(blocks) if _is_blank_text(block)]
    if not blank:
        return blocks
    notes += [Note(f"{path}.{number}", "ignored", BLANK_TEXT) for number in blank]
    return [block for block in blocks if not _is_blank_text(block)]


def _is_blank_text(block: Any) -> bool:
    if _field(block, "type") != "text":
        return False
    text = block.get("text")
    return isinstance(text, str) and (not text or text.isspace())


def _rewrite_block(block: Any, path: str, notes: list[Note]) -> Any:
    """Return the block, as the same object if unchanged."""
    kind = _field(block, "type")
    if kind in CALLS and not isinstance(block.get("input"), dict):
        notes.append(Note(f"{path}.input", *REPAIRED))
        return {**block, "input": object_arguments(block.get("input"))}
    if kind == "tool_result":
        content = block.get("content")
        if not isinstance(content, list):
            return block
        parts = _without_blank_texts(content, f"{path}.content", notes)
        if parts is content:
            return block
        if not parts and block.get("is_error"):  # the content of an error must not be empty
            return {**block, "content": tool_error_text("")}
        return {**block, "content": parts}
    if kind == "text" and any(map(_is_foreign_citation, _list(block.get("citations")))):
        notes.append(Note(f"{path}.citations", "ignored", "citations of another upstream"))
        citations = [c for c in block["citations"] if not _is_foreign_citation(c)]
        rest = {name: value for name, value in block.items() if name != "citations"}
        return rest | ({"citations": citations} if citations else {})
    return block


def _drop_reason(block: Any, foreign_searches: list[Any], profile: Profile) -> str:
    match _field(block, "type"):
        case "thinking" if not (block.get("signature") or profile.unsigned_thinking):
            return "thinking without a signature would be refused"
        case "thinking" | "redacted_thinking" if is_own_signature(
            str(block.get("signature") or block.get("data") or "")
        ):
            return "reasoning of another upstream"
        case "server_tool_use" if block.get("id") in foreign_searches:
            return "a search that another upstream made"
        case "web_search_tool_result" if block.get("tool_use_id") in foreign_searches:
            return "the result of a search that another upstream made"
    return ""


def _foreign_search_ids(content: list[Any]) -> list[Any]:
    """Return the ids of web searches whose results lack Anthropic's encrypted content.

    They were made by another upstream or by the gateway.
    """
    return [
        block.get("tool_use_id")
        for block in content
        if _field(block, "type") == "web_search_tool_result"
        and isinstance(block.get("content"), list)
        and any(
            not content or is_own_content(content)
            for content in (_field(result, "encrypted_content") for result in block["content"])
        )
    ]


def _is_foreign_citation(citation: Any) -> bool:
    return _field(citation, "type") == "web_search_result_location" and not _field(
        citation, "encrypted_index"
    )


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
