"""Split a request body into pieces that later requests repeat, and join the pieces again.

A conversation of 100 turns sends its first message 100 times. So each message, each system block
and the list of tools is stored once, as a piece identified by the SHA-256 of its JSON. Clients move
their ``cache_control`` fields ("marks") to another block in each turn. So the marks are removed
before hashing and stored separately with their positions. The joined body equals the original,
including the order of its keys.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from .turn_summary import TurnSummary, summarize_turn

LIST_FIELDS: Final = ("system", "messages")  # each element of the list is a piece
WHOLE_FIELDS: Final = ("tools",)  # the whole list is one piece, as it rarely changes
MARK: Final = "cache_control"
MARK_TEXT: Final = b'"cache_control":'

encode_json: Final = msgspec.json.Encoder().encode
decode_json: Final = msgspec.json.Decoder().decode

# Path to the object that had the ``cache_control`` key, position of the key, and its value
Mark = tuple[list[str | int], int, Any]


class Piece(NamedTuple):
    """A JSON text of a request body or response, and its SHA-256."""

    digest: bytes
    text: bytes


class SplitBody(NamedTuple):
    """A request body in pieces.

    ``fields``: the pieces of the split fields: a list of pieces for a list in ``LIST_FIELDS``, one
    piece for any other value.
    """

    envelope: Piece  # the request body with null as the value of each field in ``fields``
    fields: dict[str, list[Piece] | Piece]
    marks: list[Mark]
    values: Mapping[str, Any] = {}
    """The decoded envelope; empty if the pieces come from the database."""
    summary: TurnSummary = TurnSummary()
    """What the newest message adds; empty if the pieces come from the database."""


class CannotSplit(Exception):
    """The request body is not a JSON object."""


def piece(value: Any) -> Piece:
    """Return the JSON of a value, with its digest."""
    text = encode_json(value)
    return Piece(hashlib.sha256(text).digest(), text)


def split_body(body: bytes) -> SplitBody:
    """Split a request body. Raises CannotSplit, msgspec.MsgspecError or RecursionError."""
    request = decode_json(body)
    if not isinstance(request, dict):
        raise CannotSplit("not a JSON object")
    messages = request.get("messages")
    summary = summarize_turn(messages) if isinstance(messages, list) else TurnSummary()
    marks: list[Mark] = []
    fields: dict[str, list[Piece] | Piece] = {}
    for name in LIST_FIELDS:
        if name in request:
            fields[name] = _pieces(request[name], name, marks)
            request[name] = None
    for name in WHOLE_FIELDS:
        if name in request:
            marks += _extract_cache_control(request[name], [name])
            fields[name] = piece(request[name])
            request[name] = None
    return SplitBody(piece(request), fields, marks, request, summary)


def _pieces(value: Any, name: str, marks: list[Mark]) -> list[Piece] | Piece:
    """Return the pieces of a field; append its ``cache_control`` marks to ``marks``.

    Only elements with a mark are searched and encoded a second time.
    """
    if not isinstance(value, list):
        return piece(value)
    pieces = []
    for index, element in enumerate(value):
        one = piece(element)
        if MARK_TEXT in one.text and (removed := list(_extract_from(element, [name, index]))):
            marks += removed
            one = piece(element)
        pieces.append(one)
    return pieces


def join_body(envelope: Any, fields: dict[str, Any], marks: list[Mark]) -> dict[str, Any]:
    """Return the original request body. ``envelope`` and ``fields`` are decoded."""
    request: dict[str, Any] = dict(envelope)
    request.update(fields)  # the order of keys is preserved, as the envelope has all of them
    for path, position, mark in marks:
        target: Any = request
        for step in path:
            target = target[step]
        items = list(target.items())
        items.insert(position, (MARK, mark))
        target.clear()
        target.update(items)
    return request


def prefix_digests(pieces: list[Piece]) -> list[bytes]:
    """Return a digest of each prefix of the list: the first piece, the first two, and so on."""
    digest, chain = b"", []
    for one in pieces:
        digest = hashlib.sha256(digest + one.digest).digest()[:16]
        chain.append(digest)
    return chain


def _extract_cache_control(blocks: Any, path: list[str | int]) -> Iterator[Mark]:
    """Remove and yield the ``cache_control`` marks of blocks or tools, including nested blocks."""
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        yield from _extract_from(block, [*path, index])


def _extract_from(block: Any, path: list[str | int]) -> Iterator[Mark]:
    if not isinstance(block, dict):
        return
    if MARK in block:
        position = list(block).index(MARK)
        yield (path, position, block.pop(MARK))
    if "content" in block:
        yield from _extract_cache_control(block["content"], [*path, "content"])
