"""Plain deltas of text, which nearly all events of a stream are, and how a read of them is decoded.

Shapes that admit nothing else are decoded one by one or by one call for many. Where the deltas of
a stream differ in nothing but their text, a ``Mould`` decodes the texts alone.
"""

import operator
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from translator.openai_responses.types import EventRead

from .decoding import SLIPS

Said = Annotated[str, msgspec.Meta(min_length=1)]


Run = tuple[list[str], str, list[dict[str, Any]]]
"""Pieces of text, all of it, and what the translator says when it hears it at once."""


class ChatDelta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: Said
    role: Literal["assistant"] | None = None
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None
    function_call: None = None


class ChatChoice(msgspec.Struct, gc=False):
    delta: ChatDelta
    index: Literal[0] = 0
    finish_reason: None = None
    error: None = None
    usage: None = None


class ChatText(msgspec.Struct, gc=False):
    choices: tuple[ChatChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    type: None = None
    error: None = None
    usage: None = None
    x_groq: None = None
    base_resp: None = None
    citations: None = None
    search_results: None = None

    at_once: ClassVar = True
    worthwhile: ClassVar = 1
    named: ClassVar = False
    head: ClassVar = b"data: "
    between: ClassVar = b"\n\n" + head
    size: ClassVar = len(head)
    text: ClassVar = re.compile(rb'"content": ?"([^"\\]+)"')

    @staticmethod
    def one(stream: Any, plain: "ChatText") -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = stream.text(plain.choices[0].delta.content)
        return events

    @staticmethod
    def said(stream: Any, plain: "list[ChatText]") -> Iterator[Run]:
        yield ChatText.run(stream, [one.choices[0].delta.content for one in plain])

    @staticmethod
    def run(stream: Any, pieces: list[str]) -> Run:
        text = "".join(pieces)
        return pieces, text, stream.text(text)


class ResponsesText(msgspec.Struct, gc=False):
    type: Literal["response.output_text.delta"]
    delta: Said
    item_id: str
    output_index: int
    content_index: int

    at_once: ClassVar = False  # items and parts are told before
    worthwhile: ClassVar = 4
    named: ClassVar = True
    head: ClassVar = b"event: response.output_text.delta\ndata: "
    between: ClassVar = b"\n\n" + head
    size: ClassVar = len(head)
    text: ClassVar = None  # each event has a number of its own

    @staticmethod
    def one(stream: Any, plain: "ResponsesText") -> list[dict[str, Any]]:
        place = plain.item_id, plain.output_index, plain.content_index
        events: list[dict[str, Any]] = stream.text(place, plain.delta)
        return events

    @staticmethod
    def said(stream: Any, plain: "list[ResponsesText]") -> Iterator[Run]:
        """One for each stretch of the same part, and nearly always it is one.

        To look at each place by itself takes 3 µs for 50, where ``groupby`` takes 7.
        """
        first = plain[0]
        item_id, output, content = place = first.item_id, first.output_index, first.content_index
        pieces = [
            one.delta
            for one in plain
            if one.item_id == item_id
            and one.output_index == output
            and one.content_index == content
        ]
        if len(pieces) == len(plain):
            text = "".join(pieces)
            yield pieces, text, stream.text(place, text)
            return
        for place, some in groupby(plain, _place):
            pieces = [one.delta for one in some]
            text = "".join(pieces)
            yield pieces, text, stream.text(place, text)


_place: Final = operator.attrgetter("item_id", "output_index", "content_index")

PLAIN: Final[dict[str, Any]] = {"chat": ChatText, "responses": ResponsesText}
"""What a plain delta of text is in each dialect: what would mean more must be absent or null.

``at_once``: they may follow the very first event; ``worthwhile``: from so many events in a read on
looking for them is cheaper than not looking; ``head``: what their frames begin with, ``size``
bytes; ``between``: what stands between two; ``named``: nothing else begins so, where a server names
its events; ``text``: where the text may stand, if nothing else differs.
"""

DECODERS: Final = {name: msgspec.json.Decoder(kind).decode for name, kind in PLAIN.items()}
TOGETHER: Final = {
    name: msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]  # it is a value
    for name, kind in PLAIN.items()
}

LAST: Final = 4
"""Frames at the end of a read that are looked at one by one: an answer ends in other events."""

_decode_strings: Final = msgspec.json.Decoder(list[str]).decode


def _as_read(kind: Any) -> Any:
    """Decodes events without what nobody reads of them, as tools and instructions.

    10 µs for 24 KB, where the whole takes 24. What is skipped must be UTF-8 all the same.
    """
    decode = msgspec.json.Decoder(kind).decode

    def decoded(text: bytes) -> Any:
        if not text.isascii():
            text.decode()
        return decode(text)

    return decoded


EVENT: Final[dict[str, Callable[[bytes], dict[str, Any]]]] = {
    "chat": msgspec.json.Decoder(dict[str, Any]).decode,
    "responses": _as_read(EventRead),
}
"""Decodes an event, whatever it is, as far as it is read; raises one of SLIPS."""

EVENTS: Final[dict[str, Callable[[bytes], list[dict[str, Any]]]]] = {
    "chat": msgspec.json.Decoder(list[dict[str, Any]]).decode,
    "responses": _as_read(list[EventRead]),
}
"""Likewise many in an array."""


class Mould:
    """What stands around the text in the frames of one stream that differ in nothing but it.

    Whatever bytes stand between two quotes are a JSON string, or the frame is no JSON at all. So a
    frame that came out of the same mould as a plain one is plain, if its bytes are a string that
    is not empty. Figure: 0.4 µs for each delta of a read of 200, and 0.9 as shapes.
    """

    def __init__(self, before: bytes, after: bytes) -> None:
        self.before = before  # the frame up to the quote before the text
        self.after = after  # and from the quote behind it

    @classmethod
    def of(cls, frame: bytes) -> "Mould | None":
        """The mould that a plain frame of Chat came out of; None: it is not plain, or hard to tell.

        That the delta's text is what stands there proves that it is the place; so what is put there
        is longer than the frame, which has it nowhere else.
        """
        head, found = ChatText.size, ChatText.text.search(frame)
        if found is None or frame[:head] != ChatText.head or b"\n" in frame:
            return None
        start, end = found.span(1)
        before, after, size = frame[:start], frame[end:], len(frame)
        try:
            plain = DECODERS["chat"](before[head:] + b"." * size + after)
        except SLIPS:
            return None
        return cls(before, after) if plain.choices[0].delta.content == "." * size else None

    def texts(self, frames: list[bytes]) -> list[str]:
        """The texts of these frames up to the last one that came out of it.

        None where anything before that is odd: shapes may still be able to tell.
        """
        before, after = self.before, self.after
        start, end = len(before), -len(after)
        run = frames[:]
        while run and not (run[-1][:start] == before and run[-1][end:] == after):
            del run[-1]
        # By ``map`` there is no bytecode for each: with that of ``_cut`` 3 to 4 % of a run of 200.
        bodies = [*map(operator.itemgetter(slice(start, end)), run)]
        texts = _strings(bodies)
        # Compared at once, which is four times as quick as one by one: equal lengths leave no
        # other way to be equal.
        same = b"".join(run) == b"%b%b%b" % (before, (after + before).join(bodies), after)
        return texts if same and all(texts) else []


def _strings(bodies: list[bytes]) -> list[str]:
    """What these bytes say, each of them between two quotes; none where one is no JSON string.

    No string has a bare line feed. So those that join them stand between strings, with the quotes
    around them; and as many strings as there are elements means that each element is one.
    """
    try:
        strings = _decode_strings(b'["%b"]' % b'",\n"'.join(bodies))
    except SLIPS:
        return []
    return strings if len(strings) == len(bodies) else []
