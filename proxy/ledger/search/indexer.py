"""Add the texts of requests to the search index, and remove them.

Callers have the ledger lock, and are in the transaction that adds or deletes the transcripts, so
the index always has the texts that are stored: prompts, responses, tool inputs and results, in the
order of the JSON, without binary content, signatures and the names of JSON fields.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from django.db import connection, models

from proxy.ledger.database.bulk_sql import MAX_KEYS, select, write
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.body_parts import decode_json
from proxy.ledger.transcripts.encoding import Conversation
from proxy.models import SearchEntry, SearchOccurrence

from . import term_index
from .query import team_term, terms_of

MAX_TEXT: Final = 1_000_000
"""Characters of one part that are indexed; text after them is not found."""
MAX_DEPTH: Final = 40
SKIPPED_FIELDS: Final = frozenset(
    {"type", "role", "signature", "media_type", "encrypted_content", "cache_control"}
)
BINARY_TYPES: Final = ("base64", "redacted_thinking")  # a tuple: a type may be unhashable
SYSTEM, TOOLS, BODY = "system", "tools", "body"
SPEAKERS: Final = {"user": "user", "assistant": "assistant", "system": "system"}
KINDS: Final = {
    "tool_use": "tool input",
    "server_tool_use": "tool input",
    "mcp_tool_use": "tool input",
    "thinking": "thinking",
}
"""Block type -> kind of its passages; a type that ends with ``tool_result`` is a tool result."""


class Passage(NamedTuple):
    """A text of a part, and its kind: whose text it is."""

    kind: str
    text: str


def passages_of(part: bytes) -> list[Passage]:
    """Return the passages of a part, ``MAX_TEXT`` characters in all.

    A part that is not JSON is one passage.
    """
    try:
        value = decode_json(part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [Passage(BODY, part[: 4 * MAX_TEXT].decode(errors="replace")[:MAX_TEXT])]
    found, left = [], MAX_TEXT
    for passage in _passages_of_value(value):
        found.append(Passage(passage.kind, passage.text[:left]))
        left -= len(passage.text)
        if left <= 0:
            break
    return found


def _passages_of_value(value: Any) -> Iterator[Passage]:
    """Yield the passages of a message, a system block, the list of tools, or a rejected body."""
    match value:
        case {"role": str(role), "content": content}:
            yield from _passages_of_content(SPEAKERS.get(role, BODY), content)
        case {"messages": _} | {"model": _}:
            yield from (Passage(BODY, text) for text in _texts(value, 0))
        case list():
            yield from (Passage(TOOLS, text) for text in _texts(value, 0))
        case _:
            yield from (Passage(SYSTEM, text) for text in _texts(value, 0))


def _passages_of_content(speaker: str, content: Any) -> Iterator[Passage]:
    for block in content if isinstance(content, list) else [content]:
        kind = str(block.get("type")) if isinstance(block, dict) else ""
        kind = "tool result" if kind.endswith("tool_result") else KINDS.get(kind, speaker)
        yield from (Passage(kind, text) for text in _texts(block, 0))


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Yield the strings in a JSON value, without binary data and without names of fields."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list) and depth < MAX_DEPTH:
        for element in value:
            yield from _texts(element, depth + 1)
    elif isinstance(value, dict) and depth < MAX_DEPTH:
        is_binary = value.get("type") in BINARY_TYPES
        for name, field in value.items():
            if name not in SKIPPED_FIELDS and not (is_binary and name == "data"):
                yield from _texts(field, depth + 1)


OCCURRENCE: Final = (
    "INSERT INTO proxy_searchoccurrence (entry_id, exchange_id) VALUES (%s, %s) "
    "ON CONFLICT DO NOTHING"
)

T = TypeVar("T")
TeamPart = tuple[int, str]
"""A part id and the name of a team."""


class NewParts(NamedTuple):
    """The parts that a request added to its conversation.

    ``repeated``: parts that an earlier request of the team has probably sent, such as the list of
    tools; they occur in this request only if no earlier request of the team sent them.
    """

    exchange_id: str
    team: str
    added: Sequence[int]
    repeated: Sequence[int] = ()


def new_parts(
    single: Iterable[T], fields: Mapping[str, T | list[T]], new_from: int
) -> tuple[list[T], list[T]]:
    """Return the parts that a request added to its conversation, and those it may have repeated.

    ``single``: a body that is not split, and the response. ``new_from``: the index of its first new
    message. That one may be the response to the previous request, which already occurs there.
    """
    settings: list[T] = []
    messages: list[T] = []
    for name, value in fields.items():
        if name == "messages" and isinstance(value, list):
            messages = value
        else:
            settings += value if isinstance(value, list) else [value]
    added = [*single, *messages[new_from + 1 if new_from else 0 :]]
    if new_from:
        return added, settings + messages[new_from : new_from + 1]
    return added + settings, []


def index_conversations(
    conversations: Iterable[tuple[Conversation, str, int]],
) -> None:
    """Index stored transcripts, each given with its team and the index of its first new message."""
    pieces = []
    for one, team, at in conversations:
        single = [piece for piece in (one.raw_body, one.answer_piece) if piece]
        fields = one.request.fields if one.request else {}
        pieces.append((one.exchange_id, team, *new_parts(single, fields, at)))
    texts = {piece.digest: piece.text for _, _, *some in pieces for each in some for piece in each}
    ids = storage.part_ids(list(texts))
    index_parts(
        [
            NewParts(
                exchange_id,
                team,
                [ids[piece.digest] for piece in added],
                [ids[piece.digest] for piece in repeated],
            )
            for exchange_id, team, added, repeated in pieces
        ],
        {ids[digest]: text for digest, text in texts.items()},
    )


def index_parts(found: Sequence[NewParts], texts: Mapping[int, bytes] | None = None) -> None:
    """Index the parts that these requests added.

    ``texts``: the text of each part; without it, the texts of new entries are loaded.
    """
    pairs = {(part, one.team): None for one in found for part in (*one.added, *one.repeated)}
    known = _entries(pairs)
    missing = [pair for pair in pairs if pair not in known]
    write(SearchEntry, [{"part_id": part, "team": team} for part, team in missing])
    fresh = _entries(missing)
    term_index.add(dict(terms_of_entries(fresh, texts)))
    known |= fresh
    rows = list(_occurrences(found, known, set(fresh)))
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(OCCURRENCE, rows)


def _occurrences(
    found: Sequence[NewParts], entries: Mapping[TeamPart, int], fresh: set[TeamPart]
) -> Iterator[tuple[int, str]]:
    """Yield the entry and the request of each occurrence.

    ``fresh``: the entries that no earlier request has; this function removes those it yields.
    """
    for one in found:
        for part in one.added:
            yield entries[part, one.team], one.exchange_id
        for part in one.repeated:
            if (part, one.team) in fresh:
                yield entries[part, one.team], one.exchange_id
        fresh.difference_update((part, one.team) for part in (*one.added, *one.repeated))


def _entries(pairs: Iterable[TeamPart]) -> dict[TeamPart, int]:
    """Return the ids of existing entries."""
    wanted = set(pairs)
    rows = select(SearchEntry, ("part_id", "team", "id"), "part_id", sorted({p for p, _ in wanted}))
    return {(part, team): pk for part, team, pk in rows if (part, team) in wanted}


def terms_of_entries(
    entries: Mapping[TeamPart, int], texts: Mapping[int, bytes] | None = None
) -> Iterator[tuple[int, set[str]]]:
    """Yield the id of each entry with its terms: those of its part, and one for its team."""
    if texts is None:
        texts = storage.readable_texts({part for part, _ in entries})
    by_part: dict[int, set[str]] = {}
    for (part, team), pk in entries.items():
        if part not in by_part:
            text = texts.get(part, b"")
            by_part[part] = terms_of("\n".join(each.text for each in passages_of(text)))
        yield pk, by_part[part] | {team_term(team)}


def forget_exchanges(exchange_ids: Sequence[str]) -> None:
    """Remove the occurrences in these requests, and the entries that occur in no other request.

    Call this before their parts are deleted.
    """
    for at in range(0, len(exchange_ids), MAX_KEYS):
        rows = SearchOccurrence.objects.filter(exchange_id__in=exchange_ids[at : at + MAX_KEYS])
        entries = sorted(set(rows.values_list("entry_id", flat=True)))
        rows.delete()
        for first in range(0, len(entries), MAX_KEYS):
            some = SearchEntry.objects.filter(pk__in=entries[first : first + MAX_KEYS])
            _forget(some.filter(occurrences=None))


def forget_parts(part_ids: Sequence[int]) -> None:
    """Remove the entries of parts that will be deleted."""
    for at in range(0, len(part_ids), MAX_KEYS):
        some = SearchEntry.objects.filter(part_id__in=part_ids[at : at + MAX_KEYS])
        SearchOccurrence.objects.filter(entry__in=some.values("pk")).delete()
        _forget(some)


def _forget(rows: models.QuerySet[SearchEntry]) -> None:
    entries = {(part, team): pk for part, team, pk in rows.values_list("part_id", "team", "pk")}
    if not entries:
        return
    term_index.remove(dict(terms_of_entries(entries)))
    SearchEntry.objects.filter(pk__in=list(entries.values())).delete()
