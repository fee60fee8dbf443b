"""A request body taken apart into pieces that later requests will repeat, and put together again.

A conversation of 100 turns sends its first message 100 times. So each message, each system block
and the list of tools is a piece of its own, known by the SHA-256 of its JSON. ``cache_control``
marks move to another block every turn: they are lifted out before hashing and kept beside the
pieces, with their place, so that the body comes back as it was, key order included.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

LIST_FIELDS: Final = ("system", "messages")  # one piece an element
WHOLE_FIELDS: Final = ("tools",)  # one piece in all: it changes seldom and compresses well
MARK: Final = "cache_control"
MARK_TEXT: Final = b'"cache_control":'

encode_json: Final = msgspec.json.Encoder().encode
decode_json: Final = msgspec.json.Decoder().decode

Mark = tuple[list[str | int], int, Any]  # path to the object, place among its keys, the mark


class Piece(NamedTuple):
    """``text`` is what is stored, under its digest."""

    digest: bytes
    text: bytes


class Parted(NamedTuple):
    """A body in pieces. ``fields`` says which pieces a field is made of.

    A field held as a list is an array of pieces; one held as a single piece is that value whole.
    """

    envelope: Piece  # the body with null for each field in ``fields``
    fields: dict[str, list[Piece] | Piece]
    marks: list[Mark]
    asked: Mapping[str, Any] = {}
    """The envelope and ``newest`` as values, where the body was taken apart just now."""
    newest: Any = None
    """The newest message that is not the client program's own (role ``system``)."""


class NotParted(Exception):
    """The body is nothing that can be kept in pieces."""


def piece(value: Any) -> Piece:
    text = encode_json(value)
    return Piece(hashlib.sha256(text).digest(), text)


def take_apart(body: bytes) -> Parted:
    """Raises NotParted, msgspec.MsgspecError or RecursionError: keep the bytes as they are."""
    request = decode_json(body)
    if not isinstance(request, dict):
        raise NotParted("not a JSON object")
    messages = request.get("messages")
    newest = _newest(messages) if messages and isinstance(messages, list) else None
    marks: list[Mark] = []
    fields: dict[str, list[Piece] | Piece] = {}
    for name in LIST_FIELDS:
        if name in request:
            fields[name] = _pieces(request[name], name, marks)
            request[name] = None
    for name in WHOLE_FIELDS:
        if name in request:
            marks += _lifted_from(request[name], [name])
            fields[name] = piece(request[name])
            request[name] = None
    return Parted(piece(request), fields, marks, request, newest)


def _newest(messages: list[Any]) -> Any:
    """Claude Code ends its list with a system message: the tools and agents that there are."""
    for message in reversed(messages):
        if not isinstance(message, dict) or message.get("role") != "system":
            return message
    return messages[-1]


def _pieces(value: Any, name: str, marks: list[Mark]) -> list[Piece] | Piece:
    """Only what has a mark in its text is walked over, and written a second time."""
    if not isinstance(value, list):
        return piece(value)
    pieces = []
    for index, element in enumerate(value):
        one = piece(element)
        if MARK_TEXT in one.text and (found := list(_lifted_of(element, [name, index]))):
            marks += found
            one = piece(element)
        pieces.append(one)
    return pieces


def put_together(envelope: Any, fields: dict[str, Any], marks: list[Mark]) -> dict[str, Any]:
    """The body again; ``fields`` holds decoded values."""
    request: dict[str, Any] = dict(envelope)
    request.update(fields)  # keys that are there keep their place
    for path, place, mark in marks:
        target: Any = request
        for step in path:
            target = target[step]
        items = list(target.items())
        items.insert(place, (MARK, mark))
        target.clear()
        target.update(items)
    return request


def chained(pieces: list[Piece]) -> list[bytes]:
    """For each n, a digest of the first n + 1 pieces: equal when two conversations begin alike."""
    digest, chain = b"", []
    for one in pieces:
        digest = hashlib.sha256(digest + one.digest).digest()[:16]
        chain.append(digest)
    return chain


def _lifted_from(blocks: Any, path: list[str | int]) -> Iterator[Mark]:
    """Take the marks out of tools, system blocks and content blocks (also of tool results)."""
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        yield from _lifted_of(block, [*path, index])


def _lifted_of(block: Any, path: list[str | int]) -> Iterator[Mark]:
    if not isinstance(block, dict):
        return
    if MARK in block:
        place = list(block).index(MARK)
        yield (path, place, block.pop(MARK))
    if "content" in block:
        yield from _lifted_from(block["content"], [*path, "content"])
