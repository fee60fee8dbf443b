"""Conversations as files: Claude Code's own session format (JSON lines), and Markdown to read.

A line of the first is what Claude Code writes into ``~/.claude/projects/*/<session>.jsonl``: a
message with its uuid, its parent's, the session and the time; sub-agents are side chains.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpResponse

from proxy.models import Exchange
from proxy.record.additions import Addition

from .clips import as_text, dump, size_of_base64
from .figures import dollars, duration
from .headers import BARE_CSP, harden

NAMESPACE: Final = uuid.UUID("6f1c3a52-58a7-5a0e-9c55-0b7a3c2f7d11")
"""Of our uuids: the same conversation exported twice has the same ones."""
LONGEST_RUN: Final = 40


@dataclass(frozen=True, slots=True)
class Told:
    """One request and what it added."""

    row: Exchange
    added: Addition


def jsonl(told: Sequence[Told]) -> Iterator[str]:
    """One line for each message, in the order in which they were said."""
    last: dict[str, str] = {}  # by request: the uuid of the last message said in it
    for one in told:
        parent = last.get(one.row.previous_id)
        for number, message in enumerate(one.added.messages, one.added.first):
            line = _line(one.row, f"messages.{number}", parent, one.row.created.isoformat())
            yield _written({**line, "type": _role(message), "message": message})
            parent = line["uuid"]
        if one.added.answer is not None:
            at = (one.row.finished or one.row.created).isoformat()
            line = _line(one.row, "answer", parent, at)
            answer = {"requestId": one.row.pk, "message": one.added.answer}
            yield _written({**line, "type": "assistant", **answer})
            parent = line["uuid"]
        if parent:
            last[one.row.pk] = parent


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    return role if role in {"user", "assistant", "system"} else "user"


def _line(row: Exchange, part: str, parent: str | None, at: str) -> dict[str, Any]:
    agent = {"agentId": row.agent_id} if row.agent_id else {}
    return {
        "parentUuid": parent,
        "isSidechain": bool(row.agent_id),
        **agent,
        "userType": "external",
        "sessionId": row.session_id or row.pk,
        "version": row.client_version,
        "uuid": str(uuid.uuid5(NAMESPACE, f"{row.pk} {part}")),
        "timestamp": at.replace("+00:00", "Z"),
    }


def _written(line: Mapping[str, Any]) -> str:
    try:
        return json.dumps(line, ensure_ascii=True, default=str) + "\n"
    except (RecursionError, ValueError):
        return json.dumps({**line, "message": "(nested too deep to be written)"}) + "\n"


def markdown(told: Sequence[Told], title: str) -> Iterator[str]:
    """The conversation as a document; what was said stands in fences that it cannot leave."""
    yield f"# {_plain(title)}\n\n"
    for number, one in enumerate(told, 1):
        row = one.row
        lane = f", agent {_plain(row.agent_id)}" if row.agent_id else ""
        facts = (
            f"{row.created:%Y-%m-%d %H:%M:%S} UTC{lane}",
            _plain(row.model_upstream or row.model_requested),
            dollars(row.cost_nanousd),
            duration(row.total_ms),
            row.stop_reason or row.error_type or row.outcome,
        )
        yield f"## {number}. {' · '.join(filter(None, facts))}\n\n`{row.pk}`\n\n"
        if one.added.skipped:
            yield f"_{one.added.skipped} earlier messages are left out._\n\n"
        for message in one.added.messages:
            told_by = message.get("role") if isinstance(message, dict) else "?"
            yield from _said(as_text(told_by).title(), message)
        if one.added.answer is not None:
            yield from _said("Answer", one.added.answer)


def _said(heading: str, message: Any) -> Iterator[str]:
    yield f"### {_plain(heading)}\n\n"
    content = message.get("content") if isinstance(message, dict) else message
    blocks = content if isinstance(content, list) else [content]
    for block in blocks:
        yield from _block(block)


def _block(block: Any) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            yield _fence(as_text(block.get("text")))
        case "thinking":
            yield "_Thinking_\n\n" + _fence(as_text(block.get("thinking")))
        case "tool_use":
            yield f"_Calls_ `{_plain(as_text(block.get('name')))}`\n\n"
            yield _fence(dump(block.get("input"), indent=2), "json")
        case "tool_result":
            failed = " (error)" if block.get("is_error") is True else ""
            yield f"_Result{failed}_\n\n"
            inner = block.get("content")
            for piece in inner if isinstance(inner, list) else [inner]:
                yield from _block(piece)
        case "image" | "document":
            yield f"_{kind}, {_size(block):,} bytes_\n\n"
        case _:
            yield _fence(as_text(block))


def _size(block: Mapping[str, Any]) -> int:
    source = block.get("source")
    payload = source.get("data") if isinstance(source, dict) else None
    return size_of_base64(payload) if isinstance(payload, str) else 0


def _fence(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text and len(fence) < LONGEST_RUN:
        fence += "`"
    return f"{fence}{language}\n{text.replace(fence, '')}\n{fence}\n\n"


def _plain(text: str) -> str:
    """On one line, and nothing that Markdown would take for markup."""
    return "".join(c if c.isalnum() or c in " -_./,:#()" else "·" for c in " ".join(text.split()))


def joined(lines: Iterable[str]) -> bytes:
    return "".join(lines).encode(errors="backslashreplace")


def as_file(body: bytes, name: str) -> HttpResponse:
    """A download that no browser shows in our name."""
    answer = HttpResponse(body, content_type="application/octet-stream")
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return harden(answer, csp=BARE_CSP)
