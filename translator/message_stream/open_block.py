"""State of one content block of a response, from its start to its stop."""

import re
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from translator.notes import Note
from translator.stream.surrogates import replace_surrogates
from translator.stream.text_buffer import TextBuffer
from translator.stream.tool_arguments import (
    ObjectScanner,
    compact_json,
    further_arguments,
    parse_arguments,
    without_nulls,
    without_trailing_commas,
)


class StopScanner:
    """Applies ``stop_sequences`` for upstreams that do not, or do not report which matched.

    Text arrives in pieces, so a possible start of a sequence is buffered.
    """

    def __init__(self, sequences: tuple[str, ...]) -> None:
        self._sequences = tuple(s for s in sequences if s)
        self._buffer = ""

    def feed(self, piece: str) -> tuple[str, str | None]:
        """Add text; return text that can be sent, and the stop sequence found in it, or None.

        The match that ends first is used; of two with the same end, the longer one. So the result
        does not depend on how the text is split into pieces.
        """
        text = self._buffer + piece
        ends = [(start + len(s), start, s) for s in self._sequences if (start := text.find(s)) >= 0]
        if ends:
            _, start, sequence = min(ends)
            self._buffer = ""
            return text[:start], sequence
        safe = min((_sendable_length(text, s) for s in self._sequences), default=len(text))
        self._buffer = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return the buffered text at the end of the response."""
        text, self._buffer = self._buffer, ""
        return text


def _sendable_length(text: str, sequence: str) -> int:
    """Return the length of ``text`` without an end that may be the start of ``sequence``."""
    first = sequence[0]
    start = text.find(first, max(0, len(text) - len(sequence) + 1))
    while start >= 0:
        if sequence.startswith(text[start:]):
            return start
        start = text.find(first, start + 1)
    return len(text)


Key = Hashable
"""The upstream's own identifier of a block, such as output item, part number and kind of text."""

Delta = dict[str, Any]

DELTA_FIELDS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
    "server_tool_use": ("input_json_delta", "partial_json"),
    "mcp_tool_use": ("input_json_delta", "partial_json"),
}
"""Block type -> type of the deltas that carry its text, and the field with the text."""

COMMA_BEFORE_END: Final = re.compile(r",\s*[}\]]")
MAX_COMMA_REPAIRS: Final = 16
"""Maximum number of pieces of one call that are repaired; each repair reads the whole arguments."""

NO_LEFTOVERS: Final = TextBuffer()
"""The leftovers of most calls; nothing writes to this buffer."""

_FIELD_BY_DELTA: Final = dict(DELTA_FIELDS.values())


class Block:
    """A block in the composer's queue; ``text`` is all text that the upstream sent for it."""

    __slots__ = (
        "arguments_value",
        "buffer",
        "citations",
        "comma_repairs",
        "content_block",
        "delays_arguments",
        "further_inputs",
        "has_object",
        "held_comma",
        "held_space",
        "is_closed",
        "is_started",
        "is_visible",
        "is_wrapper",
        "key",
        "leftovers",
        "object_scanner",
        "queued_deltas",
        "scanned_text",
        "scanner",
        "sends_arguments",
        "signature",
        "type",
    )

    def __init__(self, key: Key, start: dict[str, Any]) -> None:
        self.key = key
        self.content_block = start
        self.type: str = start["type"]
        self.queued_deltas: list[Delta] = []  # deltas to send when the block becomes active
        self.buffer = TextBuffer()  # all text that the upstream sent for the block
        self.citations: list[dict[str, Any]] = []
        self.signature = ""
        self.scanner: StopScanner | None = None  # finds stop sequences in the text
        # Text that can be sent, because it contains no stop sequence.
        self.scanned_text: TextBuffer | None = None
        self.is_started = False  # whether ``content_block_start`` was sent
        self.is_visible = False  # whether the text so far is more than white space
        self.held_space: list[str] = []  # white space at the start of the text
        self.is_closed = False  # whether the upstream finished the block
        # Whether arguments are sent at the block's end, after validation.
        self.delays_arguments = False
        self.object_scanner = ObjectScanner()  # finds the end of the arguments
        self.has_object: bool | None = None  # whether the ended arguments parse; None: not tried
        self.leftovers = NO_LEFTOVERS  # text behind complete arguments; ``buffer`` has none of it
        self.is_wrapper = False  # whether the call may be one of OpenAI's wrapper around calls
        self.sends_arguments = False  # whether arguments are being sent: they start with a brace
        self.arguments_value: Any = None  # the parsed arguments
        self.further_inputs: Sequence[dict[str, Any]] = ()  # of further calls of the same tool
        self.held_comma: list[str] = []  # a comma at the end of the arguments, and what follows it
        self.comma_repairs = 0  # how often trailing commas were removed

    @property
    def text(self) -> str:
        return self.buffer.getvalue()

    def finished(self, *, shows_thinking: bool) -> dict[str, Any]:
        """Return the complete block, as in a non-streamed response."""
        finished = {**self.content_block}
        match self.type:
            case "text":
                finished["text"] = (self.scanned_text or self.buffer).getvalue()
                if self.citations:
                    finished["citations"] = self.citations
            case "thinking":
                finished["thinking"] = self.text if shows_thinking else ""
                finished["signature"] = self.signature
            case "tool_use" | "server_tool_use":
                finished["input"] = self.arguments_value
        return finished

    def add_arguments(self, piece: str) -> str:
        """Store a piece of the arguments; return the part of it that belongs to their object."""
        end = self.object_scanner.feed(piece)
        inside = piece[:end] if end < len(piece) else piece
        self.buffer.append(inside)
        if inside is not piece:
            if self.leftovers is NO_LEFTOVERS:
                self.leftovers = TextBuffer()
            self.leftovers.append(piece[end:])
        return inside

    def holds(self, arguments: str) -> bool:
        """Return whether these are all arguments so far; reads them only if the length is equal."""
        return len(arguments) == self.buffer.tell() and arguments == self.received

    def set_arguments(self, text: str) -> None:
        """Replace the arguments, none of which were sent."""
        self.object_scanner, self.has_object = ObjectScanner(), None
        self.buffer, self.leftovers = TextBuffer(), NO_LEFTOVERS
        self.add_arguments(text)

    @property
    def received(self) -> str:
        """All arguments that the upstream sent, with the text behind them."""
        return self.text + self.leftovers.getvalue()

    @property
    def has_complete_object(self) -> bool:
        """Return whether the arguments form a whole JSON object; parse them at most once."""
        if not self.object_scanner.ended:
            return False
        if self.has_object is None:
            self.arguments_value, is_repaired = parse_arguments(self.text)
            self.has_object = isinstance(self.arguments_value, dict) and not is_repaired
        return self.has_object

    def is_complete_call(self) -> bool:
        """Return whether this is a call whose arguments are sent and form a whole JSON object.

        An empty object is no proof: some servers send it before the real arguments.
        """
        return self.sends_arguments and self.has_complete_object and bool(self.arguments_value)

    def without_comma(self, piece: str) -> str:
        """Return the part of an arguments piece that can be sent, without trailing commas.

        A comma at the end of a piece waits for the next piece, which shows whether it is trailing.
        """
        if self.held_comma and piece.isspace():
            self.held_comma.append(piece)
            return ""
        piece = "".join(self.held_comma) + piece
        if COMMA_BEFORE_END.search(piece) and self.comma_repairs < MAX_COMMA_REPAIRS:
            self.comma_repairs += 1
            text = self.text.lstrip()
            sent = without_trailing_commas(text[: len(text) - len(piece)])
            piece = without_trailing_commas(text)[len(sent) :]
        sendable = piece.rstrip()
        if not sendable.endswith(","):
            self.held_comma = []
            return piece
        self.held_comma = [piece[len(sendable) - 1 :]]
        return sendable[:-1]

    def make_delta(self, piece: str) -> Delta:
        kind, name = DELTA_FIELDS[self.type]
        return {"type": kind, name: piece}


def merge_deltas(deltas: Iterable[Delta]) -> list[Delta]:
    """Merge consecutive deltas of one type, so that queued text is sent as one delta.

    The empty first delta of a tool call remains separate, because clients wait for it.
    """
    merged: list[Delta] = []
    pieces: list[str] = []  # pieces of the last delta in ``merged``
    for delta in deltas:
        kind = delta["type"]
        name = _FIELD_BY_DELTA.get(kind)
        if name is None or not delta[name] or not pieces or merged[-1]["type"] != kind:
            _join_last(merged, pieces)
            merged.append(delta)
            pieces = [delta[name]] if name is not None and delta[name] else []
        else:
            pieces.append(delta[name])
    _join_last(merged, pieces)
    return merged


def _join_last(merged: list[Delta], pieces: list[str]) -> None:
    if len(pieces) > 1:
        kind = merged[-1]["type"]
        merged[-1] = {"type": kind, _FIELD_BY_DELTA[kind]: "".join(pieces)}


REPAIRED_ARGUMENTS: Final = Note("content", "repaired", "tool arguments were broken JSON")
GLUED_CALLS: Final = Note(
    "content", "repaired", "the arguments of several calls came in one; each is given as a call"
)
BROKEN_ARGUMENTS: Final = Note("content", "ignored", "bad_tool_json: tool arguments do not parse")


def finish_input(block: Block, optional: AbstractSet[str]) -> tuple[str, Note | None]:
    """Set ``block.arguments_value``; return the text that is still to be sent, and a note.

    ``block.further_inputs`` are then the inputs of further calls in the same arguments.

    Arguments that were delayed are sent now, repaired if possible. Arguments that were streamed are
    already sent: if a repair of them succeeds, it is only in the value, for whole responses. Text
    behind complete arguments is never sent, unless it has a meaning (then they are broken).
    ``optional``: the properties whose nulls are removed.
    """
    leftovers = block.leftovers.getvalue()
    further = further_arguments(leftovers, block.text) if leftovers else None
    is_cut = further is not None and isinstance(parse_arguments(block.text)[0], dict)
    text = block.text if is_cut else block.text + leftovers
    value, repaired = parse_arguments(text)
    is_unsent = block.delays_arguments or not block.sends_arguments
    is_object = isinstance(value, dict)
    is_valid = is_object and (is_unsent or not repaired)
    if is_object and not is_valid and block.comma_repairs:
        is_valid = not parse_arguments(without_trailing_commas(text))[1]
    note = None
    if not is_valid:
        note = BROKEN_ARGUMENTS
    elif repaired or (is_cut and not leftovers.isspace()):
        note = REPAIRED_ARGUMENTS
    if further and is_valid:
        note = GLUED_CALLS
        block.further_inputs = [replace_surrogates(without_nulls(v, optional)) for v in further]
    if not is_object:
        value = text
    if "\\u" in text:
        value = replace_surrogates(value)  # an escape sequence may encode an unpaired surrogate
    unsent = "".join(block.held_comma) + ("" if is_cut else leftovers)
    if is_unsent:
        if is_valid and (repaired or optional):
            value = without_nulls(value, optional)
            unsent = compact_json(value)
        else:  # null or only white space: the call has no arguments
            unsent = text if value else ""
    block.arguments_value = value
    return unsent, note
