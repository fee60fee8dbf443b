"""Generate the table of ``corpus.md``: each recording, its features, its translation, its notes."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from translation_tables import code, table

from translator import anthropic_upstream, openai_chat, openai_responses
from translator.anthropic.request_validation import (
    parse_count_tokens_request,
    parse_messages_request,
)
from translator.capabilities import profile_with
from translator.dialect import Dialect, ResponseContext, Stream, TranslationTarget
from translator.errors import BadRequest
from translator.message_stream.events_to_message import fold
from translator.notes import Note
from translator.stream.sse import DONE, SSEDecoder

CORPUS = Path(__file__).parents[3] / "shared/corpus"

DIALECTS = {
    "responses": openai_responses.DIALECT,
    "chat": openai_chat.DIALECT,
    "anthropic": anthropic_upstream.DIALECT,
}
CAPABLE = TranslationTarget(
    model="m", profile=profile_with("openai", {"prefill": True, "mcp": True})
)
CONTEXT = ResponseContext(message_id="msg_1", model="claude", input_estimate=1, target=CAPABLE)
HIDDEN_FEATURES = ("event:", "item:", "terminal:")
MAX_FEATURES = 8


def corpus_table() -> str | None:
    """Return the table, or None without the recordings: the page then stays unchanged."""
    index = CORPUS / "index.json"
    if not index.exists():
        return None
    entries = json.loads(index.read_text(encoding="utf-8"))["entries"]
    rows = [row_of(entry) for entry in sorted(entries, key=lambda each: each["file"])]
    return table(["recording", "features", "translation", "notes"], rows)


def row_of(entry: dict[str, Any]) -> list[str]:
    raw = (CORPUS / entry["file"]).read_bytes()
    dialect, _, form = entry["kind"].partition("-")
    if form == "stream":
        out, notes = translate_stream(DIALECTS[dialect], raw)
    elif form == "json":
        out, notes = translate_body(DIALECTS[dialect], json.loads(raw))
    elif form == "requests":
        out, notes = translate_request(json.loads(raw))
    else:
        out, notes = translate_error(json.loads(raw))
    features = [f for f in entry["features"] if not f.startswith(HIDDEN_FEATURES)]
    more = f" and {len(features) - MAX_FEATURES} more" if len(features) > MAX_FEATURES else ""
    return [code(entry["file"]), ", ".join(features[:MAX_FEATURES]) + more, out, notes]


def translate_stream(dialect: Dialect, raw: bytes) -> tuple[str, str]:
    decoder, stream = SSEDecoder(), dialect.stream(CONTEXT)
    events: list[dict[str, Any]] = []
    for _, text in [*decoder.feed(raw), *decoder.end()]:
        if not stream.finished and text.strip() != DONE:
            events += stream.feed(json.loads(text))
    return describe(stream, [*events, *stream.end()])


def translate_body(dialect: Dialect, body: dict[str, Any]) -> tuple[str, str]:
    stream = dialect.stream(CONTEXT)
    return describe(stream, stream.feed_body(body))


def describe(stream: Stream, events: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the outcome of a translated stream and its notes."""
    notes = format_notes(stream.notes)
    if stream.unknown:
        notes = "; ".join(filter(None, [notes, f"unknown: {', '.join(sorted(stream.unknown))}"]))
    if stream.error is not None:
        return f"error {code(stream.error.error_type)}: {stream.error.message}", notes
    message = fold(events)
    kinds = Counter(block["type"] for block in message["content"])
    blocks = ", ".join(f"{n} {code(kind)}" for kind, n in kinds.items()) or "no blocks"
    usage = message["usage"]
    counts = f"{usage['input_tokens']} in, {usage['output_tokens']} out"
    return f"{blocks}; {code(message['stop_reason'])}; {counts}", notes


def translate_request(request: dict[str, Any]) -> tuple[str, str]:
    """Translate a recorded Messages request into both dialects, with a capable profile."""
    body = request.get("body", request)
    out, notes = [], []
    for name in ("responses", "chat"):
        try:
            parse = parse_messages_request if "max_tokens" in body else parse_count_tokens_request
            built = DIALECTS[name].build_request(parse(body), CAPABLE)
        except BadRequest as exc:
            out.append(f"{name}: 400 {exc}")
            continue
        history = built.body.get("input") or built.body.get("messages") or []
        tools = len(built.body.get("tools") or ())
        out.append(f"{name}: {len(history)} items, {tools} tools")
        notes.append(format_notes(built.notes))
    return "; ".join(out), "; ".join(dict.fromkeys(filter(None, notes)))


def translate_error(record: dict[str, Any]) -> tuple[str, str]:
    anthropic = record.get("provider") == "anthropic"
    dialect = DIALECTS["anthropic" if anthropic else "chat"]
    body = record["body_json"] if record.get("body_json") is not None else record["body_raw"]
    error = dialect.map_error(record["status"] or 400, body)
    return f"{error.status} {code(error.error_type)}: {error.message}", ""


def format_notes(notes: Iterable[Note]) -> str:
    return "; ".join(
        dict.fromkeys(f"{code(note.path)} {note.fate}: {note.reason}" for note in notes)
    )


PARTS = {"corpus": corpus_table}
