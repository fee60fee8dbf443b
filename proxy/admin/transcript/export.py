"""Export conversations as files: Claude Code's session format (JSON lines), and Markdown.

Claude Code writes such lines to ``~/.claude/projects/*/<session>.jsonl``. Each line has a message,
its uuid, the uuid of the message before it (its parent), the session id and the time. Messages of
sub-agents are marked as side chains (``isSidechain``).
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.http import HttpResponse

from proxy.admin.core.csp_middleware import BARE_CSP, set_security_headers
from proxy.admin.core.number_format import dollars, duration
from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.transcripts.session_diff import Addition
from proxy.ledger.transcripts.visible_text import show_invisible
from proxy.models import Exchange

from .truncation import as_text, dump_json, size_of_base64

NAMESPACE: Final = uuid.UUID("6f1c3a52-58a7-5a0e-9c55-0b7a3c2f7d11")
"""Namespace of the UUIDv5 ids: two exports of one conversation contain the same ids."""
MAX_FENCE: Final = 40


@dataclass(frozen=True, slots=True)
class ExportedRequest:
    """One request and the messages that it added to the conversation of its session."""

    row: Exchange
    added: Addition


def jsonl_lines(requests: Sequence[ExportedRequest]) -> Iterator[str]:
    """Yield one JSON line for each message, in order."""
    last: dict[str, str] = {}  # request id -> uuid of its last message
    for request in requests:
        row, added = request.row, request.added
        parent = last.get(row.previous_id)
        if key := added.missing_key:
            head = _line_head(row, "encrypted", parent, row.created)
            yield _encode_line({**head, "type": "system", "content": str(MissingBodyKey(key))})
        for number, message in enumerate(added.messages, added.first):
            line = _line_head(row, f"messages.{number}", parent, row.created)
            role = message.get("role") if isinstance(message, dict) else None
            kind = role if role in {"user", "assistant", "system"} else "user"
            yield _encode_line({**line, "type": kind, "message": message})
            parent = line["uuid"]
        if added.answer is not None:
            line = _line_head(row, "answer", parent, row.finished or row.created)
            answer = {"requestId": row.pk, "message": added.answer}
            yield _encode_line({**line, "type": "assistant", **answer})
            parent = line["uuid"]
        if parent:
            last[row.pk] = parent


def _line_head(row: Exchange, part: str, parent: str | None, at: datetime) -> dict[str, Any]:
    agent = {"agentId": row.agent_id} if row.agent_id else {}
    return {
        "parentUuid": parent,
        "isSidechain": bool(row.agent_id),
        **agent,
        "userType": "external",
        "sessionId": row.session_id or row.pk,
        "version": row.client_version,
        "uuid": str(uuid.uuid5(NAMESPACE, f"{row.pk} {part}")),
        "timestamp": at.isoformat().replace("+00:00", "Z"),
    }


def _encode_line(line: Mapping[str, Any]) -> str:
    try:
        return json.dumps(line, ensure_ascii=True, default=str) + "\n"
    except (RecursionError, ValueError):
        return json.dumps({**line, "message": "(nested too deep for JSON)"}) + "\n"


def markdown_lines(requests: Sequence[ExportedRequest], title: str) -> Iterator[str]:
    """Yield the conversation as Markdown, with each text in a fenced code block."""
    yield f"# {_plain(title)}\n\n"
    for number, request in enumerate(requests, 1):
        row = request.row
        agent = f", agent {_plain(row.agent_id)}" if row.agent_id else ""
        facts = (
            f"{row.created:%Y-%m-%d %H:%M:%S} UTC{agent}",
            _plain(row.model_upstream or row.model_requested),
            dollars(row.cost_nanousd),
            duration(row.total_ms),
            row.stop_reason or row.error_type or row.outcome,
        )
        yield f"## {number}. {' · '.join(filter(None, facts))}\n\n`{row.pk}`\n\n"
        if key := request.added.missing_key:
            yield f"_The transcript is {MissingBodyKey(key)}._\n\n"
        if request.added.skipped:
            yield f"_{request.added.skipped} earlier messages are omitted._\n\n"
        for message in request.added.messages:
            role = message.get("role") if isinstance(message, dict) else "?"
            yield from _render_text(as_text(role).title(), message)
        if request.added.answer is not None:
            yield from _render_text("Answer", request.added.answer)


def _render_text(heading: str, message: Any) -> Iterator[str]:
    yield f"### {_plain(heading)}\n\n"
    content = message.get("content") if isinstance(message, dict) else message
    blocks = content if isinstance(content, list) else [content]
    for block in blocks:
        yield from _render_block(block)


def _render_block(block: Any) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            yield _fence(as_text(block.get("text")))
        case "thinking":
            yield "_Thinking_\n\n" + _fence(as_text(block.get("thinking")))
        case "tool_use":
            yield f"_Calls_ `{_plain(as_text(block.get('name')))}`\n\n"
            yield _fence(dump_json(block.get("input"), indent=2), "json")
        case "tool_result":
            failed = " (error)" if block.get("is_error") is True else ""
            yield f"_Result{failed}_\n\n"
            inner = block.get("content")
            for piece in inner if isinstance(inner, list) else [inner]:
                yield from _render_block(piece)
        case "image" | "document":
            source = block.get("source")
            payload = source.get("data") if isinstance(source, dict) else None
            size = size_of_base64(payload) if isinstance(payload, str) else 0
            yield f"_{kind}, {size:,} bytes_\n\n"
        case _:
            yield _fence(as_text(block))


def _fence(text: str, language: str = "") -> str:
    """Return a fenced code block whose fence is longer than any fence inside the text."""
    fence = "```"
    while fence in text and len(fence) < MAX_FENCE:
        fence += "`"
    return f"{fence}{language}\n{show_invisible(text.replace(fence, ''))}\n{fence}\n\n"


def _plain(text: str) -> str:
    """Return the text on one line, with the characters of Markdown's markup replaced by "·"."""
    return "".join(c if c.isalnum() or c in " -_./,:#()" else "·" for c in " ".join(text.split()))


def download_response(content: bytes | Iterable[str], name: str) -> HttpResponse:
    """Return a response that a browser saves as a file, and never renders on this origin."""
    if not isinstance(content, bytes):
        content = "".join(content).encode(errors="backslashreplace")
    response = HttpResponse(content, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return set_security_headers(response, csp=BARE_CSP)
