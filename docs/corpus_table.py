"""The table of ``corpus.md``: each recording, what is in it, and what becomes of it."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from translation_tables import code, table

from translator import anthropic_upstream, openai_chat, openai_responses
from translator.anthropic.fold import fold
from translator.anthropic.request import parse_count_tokens_request, parse_messages_request
from translator.dialect import AnswerContext, Dialect, Stream, Target
from translator.errors import BadRequest
from translator.notes import Note
from translator.profiles import profile_with
from translator.sse import DONE, SSEDecoder

CORPUS = Path(__file__).parents[2] / "shared/corpus"

DIALECTS = {
    "responses": openai_responses.DIALECT,
    "chat": openai_chat.DIALECT,
    "anthropic": anthropic_upstream.DIALECT,
}
CAPABLE = Target(model="m", profile=profile_with("openai", {"prefill": True, "mcp": True}))
CONTEXT = AnswerContext(message_id="msg_1", model="claude", input_estimate=1, target=CAPABLE)
QUIET = ("event:", "item:", "terminal:")
MOST_FEATURES = 8


def corpus_table() -> str | None:
    """None where the recordings are not at hand: then the page stays as it is."""
    index = CORPUS / "index.json"
    if not index.exists():
        return None
    entries = json.loads(index.read_text(encoding="utf-8"))["entries"]
    rows = [row_of(entry) for entry in sorted(entries, key=lambda each: each["file"])]
    return table(["recording", "in it", "came out", "notes"], rows)


def row_of(entry: dict[str, Any]) -> list[str]:
    raw = (CORPUS / entry["file"]).read_bytes()
    dialect, _, form = entry["kind"].partition("-")
    if form == "stream":
        out, notes = streamed(DIALECTS[dialect], raw)
    elif form == "json":
        out, notes = whole(DIALECTS[dialect], json.loads(raw))
    elif form == "requests":
        out, notes = requested(json.loads(raw))
    else:
        out, notes = refused(json.loads(raw))
    features = [f for f in entry["features"] if not f.startswith(QUIET)]
    more = f" and {len(features) - MOST_FEATURES} more" if len(features) > MOST_FEATURES else ""
    return [code(entry["file"]), ", ".join(features[:MOST_FEATURES]) + more, out, notes]


def streamed(dialect: Dialect, raw: bytes) -> tuple[str, str]:
    decoder, stream = SSEDecoder(), dialect.stream(CONTEXT)
    said: list[dict[str, Any]] = []
    for _, text in [*decoder.feed(raw), *decoder.end()]:
        if not stream.finished and text.strip() != DONE:
            said += stream.feed(json.loads(text))
    return told(stream, [*said, *stream.end()])


def whole(dialect: Dialect, body: dict[str, Any]) -> tuple[str, str]:
    stream = dialect.stream(CONTEXT)
    return told(stream, stream.feed_whole(body))


def told(stream: Stream, said: list[dict[str, Any]]) -> tuple[str, str]:
    notes = noted(stream.notes)
    if stream.unknown:
        notes = "; ".join(filter(None, [notes, f"unknown: {', '.join(sorted(stream.unknown))}"]))
    if stream.error is not None:
        return f"error {code(stream.error.error_type)}: {stream.error.message}", notes
    message = fold(said)
    kinds = Counter(block["type"] for block in message["content"])
    blocks = ", ".join(f"{n} {code(kind)}" for kind, n in kinds.items()) or "no blocks"
    usage = message["usage"]
    counts = f"{usage['input_tokens']} in, {usage['output_tokens']} out"
    return f"{blocks}; {code(message['stop_reason'])}; {counts}", notes


def requested(request: dict[str, Any]) -> tuple[str, str]:
    """A recorded Messages request, in both dialects; the profiles are capable ones."""
    body = request.get("body", request)
    out, notes = [], []
    for name in ("responses", "chat"):
        try:
            parse = parse_messages_request if "max_tokens" in body else parse_count_tokens_request
            made = DIALECTS[name].build_request(parse(body), CAPABLE)
        except BadRequest as exc:
            out.append(f"{name}: 400 {exc}")
            continue
        history = made.body.get("input") or made.body.get("messages") or []
        tools = len(made.body.get("tools") or ())
        out.append(f"{name}: {len(history)} items, {tools} tools")
        notes.append(noted(made.notes))
    return "; ".join(out), "; ".join(dict.fromkeys(filter(None, notes)))


def refused(record: dict[str, Any]) -> tuple[str, str]:
    anthropic = record.get("provider") == "anthropic"
    dialect = DIALECTS["anthropic" if anthropic else "chat"]
    body = record["body_json"] if record.get("body_json") is not None else record["body_raw"]
    error = dialect.map_error(record["status"] or 400, body)
    return f"{error.status} {code(error.error_type)}: {error.message}", ""


def noted(notes: Iterable[Note]) -> str:
    return "; ".join(
        dict.fromkeys(f"{code(note.path)} {note.fate}: {note.reason}" for note in notes)
    )


PARTS = {"corpus": corpus_table}
