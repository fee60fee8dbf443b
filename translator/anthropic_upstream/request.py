"""A Messages request for an Anthropic upstream: as it came, without what only we can read.

Parts that stay are the client's own objects (``is``), so that the gateway can send their bytes
untouched: signatures and prompt caches depend on them. Source: mapping.md 2.4 and 7.
"""

from typing import Any, Final

from translator.anthropic.types import MessagesRequest
from translator.carrier import is_carrier
from translator.client_tools import server_tool_of
from translator.dialect import AnswerContext, Target, UpstreamRequest
from translator.errors import BadRequest
from translator.notes import Note
from translator.profiles import Profile

Block = dict[str, Any]

RAW_INPUT: Final = "_raw"
"""Under this name a call's broken arguments stand in ``input``, which must be an object."""


def build_request(request: MessagesRequest, target: Target) -> UpstreamRequest:
    """The request with the target's model, without our carriers and what we made up for others."""
    notes: list[Note] = []
    body = dict(request)
    if target.model:
        body["model"] = target.model
    messages = [
        kept
        for number, message in enumerate(request["messages"])
        if (kept := _message(message, f"messages.{number}", notes)) is not None
    ]
    if notes:
        body["messages"] = messages
    notes += _narrowed(body, target.profile)
    return UpstreamRequest(
        body=body,
        notes=tuple(notes),
        answer=AnswerContext(
            model=request.get("model", ""), target=target, max_tokens=request.get("max_tokens")
        ),
    )


def _narrowed(body: dict[str, Any], profile: Profile) -> list[Note]:
    """Leave out of ``body`` what a compatible server does not know (mapping.md 7)."""
    if "inference_geo" in profile.refused_fields and body.get("inference_geo"):
        raise BadRequest("inference_geo", "this upstream does not know the field")
    notes = [
        Note(name, "dropped", "this upstream does not know the field")
        for name in profile.refused_fields
        if body.pop(name, None) is not None
    ]
    if not profile.server_tools:
        notes += _without_server_tools(body)
    if not profile.mid_system:
        notes += [
            Note(f"messages.{number}.role", "emulated", "system text goes as the user's")
            for number, message in enumerate(body["messages"])
            if message["role"] == "system"
        ]
        body["messages"] = [_as_user(message) for message in body["messages"]]
    return notes


def _without_server_tools(body: dict[str, Any]) -> list[Note]:
    tools: list[Block] = body.get("tools") or []
    gone = {n: tool for n, tool in enumerate(tools) if server_tool_of(tool.get("type") or "")}
    forced = (body.get("tool_choice") or {}).get("name")
    if any(tool.get("name") == forced for tool in gone.values()):
        raise BadRequest("tool_choice.name", f"this upstream does not run {forced!r}")
    if gone:
        body["tools"] = [tool for n, tool in enumerate(tools) if n not in gone]
    return [
        Note(f"tools.{number}", "dropped", "this upstream runs no server tools") for number in gone
    ]


def _as_user(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "system":
        return message
    return {"role": "user", "content": message["content"]}


def _message(message: dict[str, Any], path: str, notes: list[Note]) -> dict[str, Any] | None:
    """The message, itself where nothing had to go; None when nothing is left of it."""
    content = message["content"]
    if message["role"] != "assistant" or isinstance(content, str):
        return message
    invented = _invented_searches(content)
    kept: list[Block] = []
    changed = False
    for number, block in enumerate(content):
        made = _block(block, invented, f"{path}.content.{number}", notes)
        changed = changed or made is not block
        if made is not None:
            kept.append(made)
    if not changed:
        return message
    return {**message, "content": kept} if kept else None


def _block(block: Block, invented: set[str], path: str, notes: list[Note]) -> Block | None:
    """The block, itself where it may stay as it is; None where it must go."""
    reason = _why_gone(block, invented)
    if reason:
        notes.append(Note(path, "ignored", reason))
        return None
    if block["type"] == "tool_use" and isinstance(block["input"], str):
        notes.append(Note(f"{path}.input", "repaired", "broken arguments are sent as a string"))
        return {**block, "input": {RAW_INPUT: block["input"]}}
    if block["type"] == "text" and any(map(_is_invented, block.get("citations") or ())):
        notes.append(Note(f"{path}.citations", "ignored", "citations of another upstream"))
        cited = [c for c in block["citations"] if not _is_invented(c)]
        rest = {name: value for name, value in block.items() if name != "citations"}
        return rest | ({"citations": cited} if cited else {})
    return block


def _why_gone(block: Block, invented: set[str]) -> str:
    match block["type"]:
        case "thinking" if not block.get("signature"):
            return "Anthropic refuses thinking without a signature"
        case "thinking" | "redacted_thinking" if is_carrier(_seal(block)):
            return "reasoning of another upstream"
        case "server_tool_use" if block["id"] in invented:
            return "a search that another upstream made"
        case "web_search_tool_result" if block["tool_use_id"] in invented:
            return "the result of a search that another upstream made"
    return ""


def _seal(block: Block) -> str:
    return str(block.get("signature") or block.get("data") or "")


def _invented_searches(content: list[Block]) -> set[str]:
    """Ids of searches without the cipher that only Anthropic's own results have."""
    return {
        block["tool_use_id"]
        for block in content
        if block["type"] == "web_search_tool_result"
        and isinstance(block["content"], list)
        and any(not _field(result, "encrypted_content") for result in block["content"])
    }


def _is_invented(citation: Block) -> bool:
    return citation.get("type") == "web_search_result_location" and not _field(
        citation, "encrypted_index"
    )


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
