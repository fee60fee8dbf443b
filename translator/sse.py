"""Server-Sent Events, both ways, without a socket. Bytes in, since both ends of a cut are bytes.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream".
"""

import json
from io import BytesIO
from itertools import takewhile
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, Final, NamedTuple

from .errors import BadUpstream

BOM: Final = b"\xef\xbb\xbf"
BOM_BEGINS: Final = (b"", BOM[:1], BOM[:2])
LF: Final = 10
DONE: Final = b"[DONE]"  # OpenAI's last line; not JSON, but complete

_without_lf: Final = itemgetter(slice(None, -1))  # mapped it takes no bytecode for each line
_event: Final = tuple.__new__  # a named tuple without its Python constructor

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ASCII_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_DELTA_KEYS: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


class ServerSentEvent(NamedTuple):
    event: str
    """The name on the ``event:`` line; ``message`` when there was none."""
    data: bytes


def format_sse(event: str, payload: dict[str, Any]) -> str:
    """Write one event as a client reads it: ``event: …``, ``data: …``, a blank line.

    The text can always be encoded as UTF-8: half a surrogate pair, which JSON can carry and
    UTF-8 cannot, leaves as its escape.
    """
    text = _delta_json(payload) if event == "content_block_delta" else _ENCODER.encode(payload)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = _ASCII_ENCODER.encode(payload)
    return f"event: {event}\ndata: {text}\n\n"


def _delta_json(payload: dict[str, Any]) -> str:
    """JSON of a delta with one string in it, as nearly every event is: a third of the time."""
    try:
        delta = payload["delta"]
        kind = delta["type"]
        key = _DELTA_KEYS[kind]
        if len(payload) == 3 and len(delta) == 2 and payload["type"] == "content_block_delta":
            return (
                f'{{"type":"content_block_delta","index":{payload["index"]:d},'
                f'"delta":{{"type":"{kind}","{key}":{encode_basestring(delta[key])}}}}}'
            )
    except (LookupError, TypeError, ValueError):
        pass  # not the usual shape: the encoder knows them all
    return _ENCODER.encode(payload)


class SSEDecoder:
    """Turns bytes, cut anywhere, into whole events. Comments, ``id:`` and ``retry:`` mean nothing.

    ``feed`` raises BadUpstream when one event exceeds ``max_event_bytes``; what was complete
    before it has been returned. ``frames`` is ``feed`` before its frames are read: a reader that
    knows what to expect may be quicker than ``event_of``.
    """

    def __init__(self, max_event_bytes: int = 16 * 2**20) -> None:
        self._max = max_event_bytes
        self._rest: list[bytes] = []  # of the event that is not complete; line ends are LF
        self._size = 0  # of the rest
        self._line_ended = False  # the rest ends in LF: one more completes the event
        self._after_cr = False  # a chunk ended between the CR and the LF of one line end
        self._head: bytes | None = b""  # first bytes, while they may be a BOM; then None

    @property
    def is_between(self) -> bool:
        """What comes next begins an event, and its line ends are LF if it has no CR."""
        return not self._rest and self._head is None and not self._after_cr

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        events = map(event_of, self.frames(chunk))
        return [event for event in events if event is not None]

    def frames(self, chunk: bytes) -> list[bytes]:
        """The frames that are complete now: an event's lines, without the blank one behind."""
        if self._head is not None:
            if self._head or chunk[:1] in BOM_BEGINS:
                chunk = self._without_bom(chunk)
            else:
                self._head = None
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_lf(chunk)
        if not chunk:
            return []
        # Joining only when an event is complete keeps a big event in small reads linear.
        complete = b"\n\n" in chunk or (self._line_ended and chunk[:1] == b"\n")
        if self._rest or not complete:
            self._rest.append(chunk)
            self._size += len(chunk)
            if not complete:
                self._line_ended = chunk.endswith(b"\n")
                self._check(self._size - self._line_ended)
                return []
            chunk = b"".join(self._rest)
            self._rest, self._size = [], 0
        self._line_ended = False
        return self._cut(chunk)

    def whole(self, chunk: bytes) -> bytes:
        """The events that are complete now, as they came, for a reader who cuts them himself.

        ``frames`` are what two LF stand between. Nothing, and nothing was taken, where their line
        ends may be others, or too many, or one of the events too large: ``frames`` takes whatever
        comes.
        """
        if self._head or self._after_cr or self._size > len(chunk) or b"\r" in chunk:
            return b""
        if self._head is not None and chunk[:1] in BOM_BEGINS:
            return b""
        whole = b"".join((*self._rest, chunk))
        end = whole.rfind(b"\n\n") + 2
        if not 2 < end <= self._max or whole[end - 3] == LF:
            return b""
        rest = whole[end:]
        self._head = None
        self._rest, self._size = ([rest], len(rest)) if rest else ([], 0)
        self._line_ended = rest[-1:] == b"\n"
        return whole[:end]

    def _cut(self, whole: bytes) -> list[bytes]:
        """Its frames; what is left behind the last one is kept."""
        # Where each event is one line: to jump from LF to LF takes 8 µs for 53 of them in 16 KB,
        # to split at LF 12, and to look for two of them 20.
        lines = BytesIO(whole).readlines() if whole[:6] != b"event:" else []
        count = len(lines) // 2
        if count and lines[1::2].count(b"\n") == count:
            frames = [*map(_without_lf, lines[: 2 * count : 2])]
            rest = lines[-1] if len(lines) % 2 else b""
        else:
            *frames, rest = whole.split(b"\n\n")
        if rest:
            self._rest, self._size = [rest], len(rest)
            self._line_ended = rest.endswith(b"\n")
        if len(whole) > self._max and any(len(frame) > self._max for frame in frames):
            return self._up_to_the_large(frames)
        return frames

    def end(self) -> list[ServerSentEvent]:
        """Say that the bytes ended. A tail without its blank line counts if it is complete JSON.

        So does each complete line, for servers that end their events by one line feed.
        """
        tail = (self._head or b"") + b"".join(self._rest)
        self._rest, self._size, self._head = [], 0, None
        event = event_of(tail)
        if event is None:
            return []
        if _is_complete(event.data):
            return [event]
        lines = takewhile(_is_complete, event.data.split(b"\n"))
        return [ServerSentEvent(event.event, line) for line in lines]

    def _up_to_the_large(self, frames: list[bytes]) -> list[bytes]:
        """What came before goes out first; the next call raises."""
        at = next(at for at, frame in enumerate(frames) if len(frame) > self._max)
        if not at:
            self._check(len(frames[0]))
        self._rest, self._size, self._line_ended = [frames[at]], len(frames[at]), False
        return frames[:at]

    def _check(self, size: int) -> None:
        if size > self._max:
            raise BadUpstream(f"upstream sent one event of more than {self._max} bytes")

    def _without_bom(self, chunk: bytes) -> bytes:
        chunk = (self._head or b"") + chunk
        if chunk in BOM_BEGINS:
            self._head = chunk
            return b""
        self._head = None
        return chunk.removeprefix(BOM)

    def _with_lf(self, chunk: bytes) -> bytes:
        if not chunk:
            return chunk
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def event_of(frame: bytes) -> ServerSentEvent | None:
    """One event from its lines (LF); None when it has no data, which dispatches nothing."""
    # Nearly every frame is one line of data, or a name and then that: 0.4 µs so, 1.1 below.
    name, line = "message", frame
    if frame[:7] == b"event: ":
        named, _, line = frame[7:].partition(b"\n")
        name = named.decode(errors="replace")
    if name and line[:6] == b"data: " and b"\n" not in line and line != b"data: ":
        return _event(ServerSentEvent, (name, line[6:]))
    name = "message"
    values: list[bytes] = []
    for line in frame.split(b"\n"):
        if line.startswith(b"data:"):
            values.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            name = line[6:].removeprefix(b" ").decode(errors="replace") or "message"
        elif line == b"data":
            values.append(b"")
        elif line.startswith(b"error: {"):  # llama.cpp until late 2025, for event and data
            name = "error"
            values.append(line[7:])
    if not values and frame.lstrip()[:1] == b"{":  # a whole answer, or an error, as plain JSON
        values.append(frame)
    data = values[0] if len(values) == 1 else b"\n".join(values)
    return ServerSentEvent(name, data) if data else None


def _is_complete(data: bytes) -> bool:
    if data.strip() == DONE:
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
