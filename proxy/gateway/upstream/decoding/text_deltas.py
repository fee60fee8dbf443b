"""Recognise plain text deltas, which are nearly all events of a response, and read their text.

The types below describe such deltas exactly, so that one call of the JSON decoder both recognises a
delta and reads its text. The stream then gets only the text and its location. The garbage collector
does not track the decoded objects (``gc=False``), because they cannot form a reference cycle.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from proxy.gateway.http.lenient_json import DECODE_ERRORS
from translator.dialect import TextLocation

Text = Annotated[str, Meta(min_length=1)]
Piece = tuple[TextLocation | None, str]
"""The text that an event adds, after its location: the content to which the text is added."""
NO_TEXT: Final[Piece] = (None, "")
"""The piece of an event that is not a plain text delta."""


class ChatDelta(Struct, forbid_unknown_fields=True, gc=False):
    """A delta of Chat Completions with text and nothing else; unused fields may be null."""

    content: Text
    role: str | None = None
    audio: None = None
    function_call: None = None
    reasoning: None = None
    reasoning_content: None = None
    refusal: None = None
    tool_calls: None = None


class ChatChoice(Struct, gc=False):
    """The first choice of a chunk, without an end of the response."""

    delta: ChatDelta
    index: Literal[0] = 0
    error: None = None
    finish_reason: None = None
    usage: None = None


class ChatChunk(Struct, gc=False):
    """A chunk of Chat Completions that adds only text: all that ``ChatStream.feed`` reads of it."""

    choices: tuple[ChatChoice]
    id: str | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    base_resp: None = None
    citations: None = None
    error: None = None
    search_results: None = None
    timings: None = None
    type: None = None
    usage: None = None
    x_groq: None = None


class OutputTextDelta(Struct, gc=False, tag_field="type", tag="response.output_text.delta"):
    """An event of the Responses API that adds only text."""

    item_id: str
    output_index: int
    content_index: int
    delta: Text


_decode_chunk: Final = msgspec.json.Decoder(ChatChunk).decode
_decode_delta: Final = msgspec.json.Decoder(OutputTextDelta).decode


def chat_piece(data: bytes) -> Piece:
    """Return the text of a chunk of Chat Completions; ``NO_TEXT`` if it is not only text.

    Its text follows the earlier text. The location is the chunk's id, and 1 if it has the role, by
    which ``ChatStream`` recognises a second response in the stream.
    """
    try:
        chunk = _decode_chunk(data)
    except DECODE_ERRORS:
        return NO_TEXT
    delta = chunk.choices[0].delta
    return (chunk.id or "", 1 if delta.role else 0, 0), delta.content


def responses_piece(data: bytes) -> Piece:
    """Return the text of an event of the Responses API; ``NO_TEXT`` if it is not only text."""
    try:
        event = _decode_delta(data)
    except DECODE_ERRORS:
        return NO_TEXT
    return (event.item_id, event.output_index, event.content_index), event.delta


PIECE_READERS: Final[Mapping[str, Callable[[bytes], Piece]]] = {
    "chat": chat_piece,
    "responses": responses_piece,
}
"""For each dialect: the function that reads the text of an event from its JSON."""
