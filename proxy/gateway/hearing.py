"""Upstream's bytes -> Anthropic events, for the dialects that are translated.

Nearly all events of a stream are plain deltas of text, and many arrive in one read. They are
decoded into a shape that admits nothing else, and a run of them goes through the translator as one
longer delta; ``TextRun`` remembers where it was cut, so that the client still gets every piece as
an event of its own. Whatever is not plain goes the general way, one event at a time.
Where they differ in nothing but their text, only that is decoded (``plain.Mould``).
Figures for one delta of 200 in a read: it is decoded in 0.9 µs so and in 0.4 out of a mould; the
general way takes 9 with all that follows.
"""

import operator
import re
from itertools import pairwise
from typing import Any, Final

import msgspec

from translator.dialect import Stream
from translator.sse import DONE, SSEDecoder, event_of

from .decoding import SLIPS, decode_event
from .frames import TextRun
from .plain import DECODERS, LAST, PLAIN, TOGETHER, Mould

MANY_BYTES: Final = 1_500
"""From so many on (some five frames) a read is worth a try to decode its frames together."""
FEW_BYTES: Final = 16 * 1024
"""Up to so many a read is taken on the spot; to wake somebody for more is nothing beside them."""
MOST_BYTES: Final = 2**20  # of them: what is left of a read is copied
OPENING: Final = 6
"""Frames at most that open an answer, before its first delta: no run can begin with them."""
NUMBERED: Final = re.compile(rb'"sequence_number": ?[1-9]')
"""Some servers number nothing, or everything alike: 0 or -1."""
MOST_MISSES: Final = 8
"""After so many text deltas in a row that are not plain (a server with fields of its own), or
reads whose deltas differ in more than their text, it is not tried again in this stream."""


_object_of: Final = msgspec.json.Decoder(dict[str, Any]).decode
NOTHING: Final = ("", b"")  # of a frame without data: no JSON either


class Hearing:
    """Hears one answer. ``events`` are what the last read amounted to."""

    def __init__(self, stream: Stream, dialect_name: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._stream = stream
        self._decoder = SSEDecoder()
        self._name = dialect_name
        self._plain = PLAIN[dialect_name]
        self._head_size = len(self._plain.heads[0])
        self._decode_plain = DECODERS[dialect_name]
        self._mould: Mould | None = None
        self._odd_moulds = 0 if self._plain.text else MOST_MISSES
        self._misses = 0
        self._hoping = False  # text is likely to come next
        self._likely = False  # and may be all that comes
        self._numbered = dialect_name == "responses"
        self._last = b""  # the frame before

    def feed(self, raw: bytes) -> None:
        """Take one read; empty: the bytes have ended.

        Raises BadUpstream; what came before the cause is in ``events`` and sound.
        """
        if self._likely and self._take_lone(raw):
            return
        self.events = []
        stream = self._stream
        whole = self._decoder.complete(raw)
        run: list[Any] = []
        if MANY_BYTES < len(whole) < MOST_BYTES:
            run, whole = self._take_many(whole)
        frames = self._decoder.cut(whole)
        if self._numbered and frames:
            if frames[0] == self._last or any(map(operator.eq, frames, frames[1:])):
                frames = _unheard(frames, self._last)
            self._last = frames[-1] if frames else self._last
        at, count = self._take_run(frames, run) if run else 0, len(frames)
        while at < count and not stream.finished:
            if self._hoping and count - at >= self._plain.worthwhile:
                at += self._take_run(frames[at:], [])
                continue
            self._take_frame(frames[at])
            at += 1
        if not raw:
            self._take_end()
        self._likely = self._hoping and self._decoder.is_between

    def flow(self, raw: bytes) -> bool:
        """Take a read that is plain deltas and nothing else, as they come from one who takes time.

        False: nothing of it was heard; ``feed`` it.
        """
        return self._likely and (self._take_lone(raw) or self._take_few(raw))

    def _take_lone(self, raw: bytes) -> bool:
        """4.5 µs for all that becomes of one delta, 10 by way of frames and runs."""
        head, text = raw[: self._head_size], raw[self._head_size : -2]
        if (
            head != self._plain.heads[0]
            or b"\n" in text
            or raw[-2:] != b"\n\n"
            or (self._numbered and raw[:-2] == self._last)
        ):
            return False
        try:
            plain = self._decode_plain(text)
        except SLIPS:
            return False
        self._last = raw[:-2]
        self.events = self._plain.one(self._stream, plain)
        return True

    def _take_few(self, raw: bytes) -> bool:
        """Some deltas that came together, as they do where there is more to do than time for it."""
        head = self._plain.heads[0]
        if raw[-3:] != b"}\n\n" or len(raw) > FEW_BYTES or raw[: self._head_size] != head:
            return False
        lines = raw[len(head) : -2].split(b"\n\n" + head)
        run = self._decoded(head, lines) if len(lines) > 1 else []
        if not run:
            return False
        self._last = head + lines[-1]
        self.events = []
        self._say(run)
        return True

    def _decoded(self, head: bytes, lines: list[bytes]) -> list[Any]:
        """Plain deltas, decoded by one call as one JSON array; none where one of them is not plain.

        JSON has no bare line feed in a string: where none is left when the heads are gone, each
        frame was its head and one line.
        """
        array = b"[%b]" % b",".join(lines)
        if not lines or b"\n" in array or (self._numbered and self._repeats(head, lines)):
            return []
        try:
            plain: list[Any] = TOGETHER[self._name](array)
        except SLIPS:
            return []
        return plain if len(plain) == len(lines) else []

    def _take_end(self) -> None:
        for event in self._decoder.end():
            self._take_one(*event)
        if not self._stream.finished:
            self.events += self._stream.end()

    def _take_frame(self, frame: bytes) -> None:
        """The general way. Nearly each frame is one line of data, maybe under a name.

        Where the data tell their type, or there is no name, nobody asks for it: 5 calls where
        reading it takes 7.
        """
        at = frame.find(b"data: {")
        text = frame[at + 6 :]
        named = at > 0 and frame[:7] == b"event: " and frame.find(b"\n") == at - 1
        if (named or not at) and b"\n" not in text:
            try:
                event = _object_of(text)
            except SLIPS:
                event = {}
            if "type" in event or (event and not named):
                self._take_said(self._stream.feed(event))
                return
        odd = event_of(frame)
        if odd is not None:
            self._take_one(*odd)

    def _take_one(self, name: str, text: bytes) -> None:
        if text[-1:] != b"}" and text.strip() == DONE:  # some servers pad it
            self._take_said(self._stream.end())
        else:
            self._take_said(self._stream.feed(decode_event(name, text)))

    def _take_said(self, said: list[dict[str, Any]]) -> None:
        self.events += said
        self._hoping = False
        if said and self._misses < MOST_MISSES:
            last = said[-1]
            if last["type"] == "content_block_delta":
                self._hoping = last["delta"]["type"] == "text_delta"
            else:  # most answers begin with text
                self._hoping = self._plain.at_once and last["type"] == "message_start"

    def _take_run(self, frames: list[bytes], run: list[Any]) -> int:
        """Take a run, and all plain deltas that go on with it; how many of the frames they are."""
        before, head, size = len(run), self._plain.heads[0], self._head_size
        try:
            for frame in frames:
                text = frame[size:]
                if frame[:size] != head or b"\n" in text:
                    if self._numbered and frame[:7] == b"event: ":
                        self._hoping = False  # it is named, and otherwise
                        break
                    _, text = event_of(frame) or NOTHING
                run.append(self._decode_plain(text))
        except SLIPS:
            self._hoping = False
        self._misses = 0 if run else self._misses + 1
        self._say(run)
        return len(run) - before

    def _say(self, run: list[Any]) -> None:
        for pieces, text, said in self._plain.said(self._stream, run) if run else ():
            self._tell(pieces, text, said)

    def _tell(self, pieces: list[str], text: str, said: list[dict[str, Any]]) -> None:
        """Keep what the translator said of a run, and how its text was cut if it said just that."""
        last = said[-1] if said and len(pieces) > 1 else {}
        if last and last["type"] == "content_block_delta" and last["delta"].get("text") == text:
            said[-1] = TextRun(last, pieces)
        self.events += said

    def _take_many(self, whole: bytes) -> tuple[list[Any], bytes]:
        """Take what opens an answer and decode the run that follows; what is left to take."""
        at = 0
        for _ in range(OPENING):
            if self._hoping:
                return self._together(whole[at:])
            end = whole.find(b"\n\n", at)
            if end < 0 or self._stream.finished:
                break
            frame, at = whole[at:end], end + 2
            if self._numbered and frame == self._last and NUMBERED.search(frame):
                continue
            self._last = frame
            self._take_frame(frame)
        return [], whole[at:]

    def _together(self, whole: bytes) -> tuple[list[Any], bytes]:
        """A long run, and what is left behind it. No run where one of the frames is not plain."""
        nothing: list[Any] = []
        for head in self._plain.heads:
            if whole.startswith(head):
                break
        else:
            return nothing, whole
        if self._odd_moulds < MOST_MISSES and (left := self._take_texts(whole, head)) is not None:
            return nothing, left
        between = b"\n\n" + head
        lines = whole[len(head) :].split(between)
        run, rest = lines[:-LAST], lines[-LAST:]
        plain = self._decoded(head, run)
        if not plain:
            return nothing, whole
        self._last = head + run[-1]
        return plain, head + between.join(rest)

    def _take_texts(self, whole: bytes, head: bytes) -> bytes | None:
        """Take a run whose frames differ in nothing but their text, and return what is left.

        None: there is none, or it is too short to be worth its own way.
        """
        mould = self._mould
        if mould is None or not whole.startswith(mould.before, len(head)):
            mould = self._mould = Mould.of(whole[: whole.find(b"\n\n")], head, self._name)
        texts, left = mould.texts(whole) if mould is not None else ([], whole)
        if len(texts) <= LAST:
            self._odd_moulds += 1
            return None
        self._odd_moulds = self._misses = 0
        self._hoping = b"\n\n" not in left  # else what comes next is likely to be no text
        self._tell(*self._plain.run(self._stream, texts))
        return left

    def _repeats(self, head: bytes, run: list[bytes]) -> bool:
        return self._last == head + run[0] or any(map(operator.eq, run, run[1:]))


def _unheard(frames: list[bytes], last: bytes) -> list[bytes]:
    """Without those that came twice in a row: an event of Responses has a number of its own."""
    return [
        frame
        for before, frame in pairwise([last, *frames])
        if frame != before or not NUMBERED.search(frame)
    ]
