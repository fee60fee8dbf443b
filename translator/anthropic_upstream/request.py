"""Prepare a Messages request for an Anthropic upstream.

Only content made by or for other upstreams is removed. The request may contain fields, blocks and
values that this version does not know, of any shape: the upstream checks them. Unchanged parts
remain the same Python objects, so that the gateway can send the client's original bytes: signatures
and prompt caches depend on identical bytes. Source: docs/mapping.md.
"""

from typing import Any, Final

from translator.anthropic.types import MessagesRequest
from translator.capabilities import Profile
from translator.dialect import ResponseContext, TranslationTarget, UpstreamRequest
from translator.errors import BadRequest
from translator.notes import Note
from translator.request.tool_support import find_server_tool
from translator.stream.reasoning_signature import is_own_signature
from translator.web_search.results import is_own_content

Block = dict[str, Any]

RAW_INPUT: Final = "_raw"
"""The key inside ``input`` for tool arguments that are not valid JSON, since ``input`` must be an
object."""


def build_request(request: MessagesRequest, target: TranslationTarget) -> UpstreamRequest:
    """Set the target's model; drop the gateway's signatures and blocks from other upstreams."""
    notes: list[Note] = []
    body = dict(request)
    if target.model:
        body["model"] = target.model
    profile = target.profile
    messages = [
        message_body
        for number, message in enumerate(_list(request.get("messages")))
        if (message_body := _rewrite_message(message, f"messages.{number}", profile, notes))
        is not None
    ]
    if notes:
        body["messages"] = messages
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
            body["messages"] = [_as_user(message) for message in messages]
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


def _as_user(message: Any) -> Any:
    if _field(message, "role") != "system":
        return message
    return {"role": "user", "content": message.get("content")}


def _rewrite_message(message: Any, path: str, profile: Profile, notes: list[Note]) -> Any:
    """Return the message, as the same object if unchanged; None if no content block is left."""
    content = _field(message, "content")
    if _field(message, "role") != "assistant" or not isinstance(content, list):
        return message
    foreign_searches = _foreign_search_ids(content)
    blocks: list[Block] = []
    changed = False
    for number, block in enumerate(content):
        reason = _drop_reason(block, foreign_searches, profile)
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


def _rewrite_block(block: Any, path: str, notes: list[Note]) -> Any:
    """Return the block, as the same object if unchanged."""
    kind = _field(block, "type")
    if kind == "tool_use" and isinstance(block.get("input"), str):
        notes.append(Note(f"{path}.input", "repaired", "broken arguments are sent as a string"))
        return {**block, "input": {RAW_INPUT: block["input"]}}
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
        case "thinking" | "redacted_thinking" if is_own_signature(_signature(block)):
            return "reasoning of another upstream"
        case "server_tool_use" if block.get("id") in foreign_searches:
            return "a search that another upstream made"
        case "web_search_tool_result" if block.get("tool_use_id") in foreign_searches:
            return "the result of a search that another upstream made"
    return ""


def _signature(block: Block) -> str:
    return str(block.get("signature") or block.get("data") or "")


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
