"""Upstream's bytes -> Anthropic events, for the dialects that are translated.

Nearly all events of a stream are plain deltas of text, and many arrive in one read. They are
decoded into a shape that admits nothing else, and a run of them goes through the translator as one
longer delta; ``TextRun`` remembers where it was cut, so that the client still gets every piece as
an event of its own. Whatever is not plain goes the general way, as an object each.
Where they differ in nothing but their text, only that is decoded (``plain.Mould``).
Figures for one delta of 200 in a read: it is decoded in 0.9 µs so and in 0.4 out of a mould; the
general way takes 9 with all that follows.
"""

import operator
import re
from io import BytesIO
from itertools import pairwise, repeat
from typing import Any, Final

from translator.dialect import Stream
from translator.sse import DONE, SSEDecoder, event_of

from .decoding import LARGE, SLIPS
from .frames import TextRun
from .odd_events import OddEvents, joined
from .plain import DECODERS, EVENT, EVENTS, LAST, PLAIN, TOGETHER, Mould

FEW_BYTES: Final = 16 * 1024
"""Up to so many a read is taken on the spot; to wake somebody for more is nothing beside them."""
MUCH: Final = 2 * 1024
"""From so many bytes on, named events are taken together where that is possible."""
NUMBERED: Final = re.compile(rb'"sequence_number": ?[1-9]')
"""Some servers number nothing, or everything alike: 0 or -1."""
MOST_MISSES: Final = 8
"""After so many text deltas in a row that are not plain (a server with fields of its own), or
reads whose deltas differ in more than their text, it is not tried again in this stream."""
SOME: Final = 8
"""Frames that are taken together where the last that was taken for text was none, but reasoning or
a call: 7.0 µs for each delta of reasoning, 8.9 one by one."""

NO_EVENT: Final = ("", b"")  # of a frame without data: no JSON either
NAME: Final = b"event: "
ODD: Final = [b""]  # which is no JSON
UNNAMED: Final = b"data: "  # what a frame of one line begins with
LAST_FRAME: Final = b"data: " + DONE


class Hearing:
    """Hears one answer. ``events`` are what the last read amounted to."""

    def __init__(self, stream: Stream, dialect_name: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._stream = stream
        self._decoder = SSEDecoder()
        self._plain = PLAIN[dialect_name]
        self._decode_plain = DECODERS[dialect_name]
        self._decode_together = TOGETHER[dialect_name]
        self._decode_event = EVENT[dialect_name]
        self._decode_events = EVENTS[dialect_name]
        self._mould: Mould | None = None
        self._odd_moulds = 0 if self._plain.text else MOST_MISSES
        self._misses = 0
        self._odd = OddEvents()
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
        whole = self._decoder.whole(raw) if len(raw) >= MUCH and self._plain.named else b""
        if whole:
            self._take_whole(whole)
        else:
            self._take(self._decoder.frames(raw))
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
        size = self._plain.size
        text = raw[size:-2]
        if (
            raw[:size] != self._plain.head
            or b"\n" in text
            or raw[-2:] != b"\n\n"
            or (self._numbered and raw[:-2] == self._last)
        ):
            return False
        try:
            plain = self._decode_plain(text)
        except SLIPS:
            return False
        if self._numbered:  # elsewhere nobody asks for it, and it is a copy
            self._last = raw[:-2]
        self.events = self._plain.one(self._stream, plain)
        return True

    def _take_few(self, raw: bytes) -> bool:
        """Some deltas that came together, as they do where there is more to do than time for it."""
        head, size = self._plain.head, self._plain.size
        if raw[-3:] != b"}\n\n" or len(raw) > FEW_BYTES or raw[:size] != head:
            return False
        lines = raw[size:-2].split(self._plain.between)
        if len(lines) == 1 or (self._numbered and _repeats(lines, self._last[size:])):
            return False
        run = self._decoded(lines)
        if not run:
            return False
        if self._numbered:
            self._last = head + lines[-1]
        self.events = []
        self._say(run)
        return True

    def _take_whole(self, whole: bytes) -> None:
        """Named events: mostly one run of text, with others before and behind it.

        A run is cut by its own head: it looks at fewer pieces than one that is cut by its lines.
        """
        plain, begin, end = self._plain, len(whole), len(whole)
        # From behind first: where there is none, that takes 2 µs for 17 KB, from before 8.
        if self._misses < MOST_MISSES and (last := whole.rfind(plain.head)) >= 0:
            begin, end = whole.find(plain.head), whole.find(b"\n\n", last) + 2
        lines = whole[begin + plain.size : end - 2].split(plain.between) if begin < end else []
        before = _texts(whole[:begin]) if begin else []
        behind = _texts(whole[end:]) if end < len(whole) else []
        texts = [*before, *lines, *behind]
        run = self._decoded(lines) if lines else []
        events = self._told([*before, *behind]) if len(lines) < len(texts) else []
        if (
            len(run) + len(events) < len(texts)  # there are several, or something is odd
            or any(map(operator.eq, texts, texts[1:]))
            or (self._last and whole.startswith(self._last))
        ):
            self._take(whole[:-2].split(b"\n\n"))
            return
        at = whole.rfind(b"\n\n", 0, -2 - len(texts[-1]))
        self._last = whole[at + 2 if at > 0 else 0 : -2]
        if before:
            self._hear(events[: len(before)])
        if run and not self._stream.finished:
            self._hoping, self._misses = True, 0
            self._say(run)
        if behind:
            self._hear(events[len(before) :])

    def _take(self, frames: list[bytes]) -> None:
        if self._numbered and frames:
            if _repeats(frames, self._last):
                frames = _unheard(frames, self._last)
            self._last = frames[-1] if frames else self._last
        at, count, stream = 0, len(frames), self._stream
        if 0 < count <= LAST and not self._hoping:  # as they come from one who takes time
            if count == 1:
                self._take_alone(frames[0])
            else:
                self._take_others(frames)
            return
        while at < count and not stream.finished:
            begins = self._text_begins(frames, at)
            taken = self._take_run(frames[at:]) if begins == at else 0
            if not taken:  # where few are left, all of them
                taken = begins - at or (1 if count - at > LAST else count - at)
                self._take_others(frames[at : at + taken])
            at += taken

    def _decoded(self, lines: list[bytes]) -> list[Any]:
        """Plain deltas, decoded by one call as one JSON array; none where one of them is not plain.

        JSON has no bare line feed in a string: where none is left when the heads are gone, each
        frame was its head and one line.
        """
        array = b"[%b]" % b",".join(lines)
        if b"\n" in array or array[LARGE:]:
            return []
        try:
            plain: list[Any] = self._decode_together(array)
        except SLIPS:
            return []
        return plain if len(plain) == len(lines) else []

    def _take_end(self) -> None:
        for event in self._decoder.end():
            self._take_one(*event)
        self.events += self._stream.feed(*self._odd.rest())
        if not self._stream.finished:
            self.events += self._stream.end()

    def _text_begins(self, frames: list[bytes], at: int) -> int:
        """From where on, here or later, it is worth a try to read a run of text."""
        plain, count = self._plain, len(frames)
        if plain.named and frames[at][:7] == b"event: ":
            if self._misses >= MOST_MISSES:
                return count
            while at < count and frames[at][: plain.size] != plain.head:
                at += 1
            return at
        if self._hoping and count - at >= plain.worthwhile:
            return at
        # After the first that may be text, for a run may follow; where few are left, nowhere.
        end = at + (SOME if self._misses else 1)
        if end > count or count - at <= LAST:
            return count
        while end < count and not frames[end - 1].startswith(UNNAMED):
            end += 1
        return end

    def _take_others(self, frames: list[bytes]) -> None:
        """The general way, for what need not be text."""
        if len(frames) == 1:
            self._take_alone(frames[0])
        elif frames[-1] == LAST_FRAME and self._odd.halves is None:
            self._take_others(frames[:-1])
            self.events += self._stream.end()
        elif events := self._events(frames):
            self._hear(events)
        else:  # mostly one of them is odd: soon it is alone
            half = len(frames) // 2
            self._take_others(frames[:half])
            self._take_others(frames[half:])

    def _take_alone(self, frame: bytes) -> None:
        """Nearly each frame is one line of data, maybe under a name.

        Nobody asks for a name where the data tell their type.
        """
        name, text = b"", b""
        if frame[:7] == b"data: {":
            text = frame[6:]
        elif frame[:7] == b"event: ":
            name, _, text = frame.partition(b"\ndata: ")
        usual = text and b"\n" not in text and b"\n" not in name and not text[LARGE:]
        try:
            event = self._decode_event(text) if usual else {}
        except SLIPS:
            event = {}
        if "type" in event or (event and not name):
            self._hear([event])
        elif not self._stream.finished:
            self._take_odd(frame)

    def _events(self, frames: list[bytes]) -> list[dict[str, Any]]:
        """The events in these frames; none where one of them is odd."""
        texts = []
        for frame in frames:
            if frame[:7] == b"data: {":
                texts.append(frame[6:])
                continue
            name, _, text = frame.partition(b"\ndata: ")
            if not self._plain.named or name[:7] != b"event: " or b"\n" in name:
                return []
            texts.append(text)
        return self._told(texts)

    def _told(self, texts: list[bytes]) -> list[dict[str, Any]]:
        """The events in these texts, decoded by one call; none where one of them is odd.

        As in ``_decoded``, no bare line feed means that each is one line.
        """
        array = b"[%b]" % b",".join(texts)
        if b"\n" in array or array[LARGE:]:
            return []
        try:
            events = self._decode_events(array)
        except SLIPS:
            return []
        return events if len(events) == len(texts) else []

    def _take_odd(self, frame: bytes) -> None:
        if frame == LAST_FRAME and self._odd.halves is None:
            self.events += self._stream.end()
        elif (told := event_of(frame)) is not None:
            self._take_one(*told)

    def _take_one(self, name: str, text: bytes) -> None:
        events, ended = self._odd.read(name, text)
        self._hear(events)
        self.events += self._stream.end() if ended else ()

    def _hear(self, events: list[dict[str, Any]]) -> None:
        if (halves := self._odd.halves) is not None:
            events, self._misses = joined(halves, events), MOST_MISSES  # no more runs
        said = self._stream.feed(*events)
        self.events += said
        self._hoping = False
        if said and self._misses < MOST_MISSES:
            last = said[-1]
            if last["type"] == "content_block_delta":
                self._hoping = last["delta"]["type"] == "text_delta"
            else:  # most answers begin with text
                self._hoping = self._plain.at_once and last["type"] == "message_start"

    def _take_run(self, frames: list[bytes]) -> int:
        """Take the plain deltas that these begin with; how many they are."""
        run: list[Any] = []
        count = len(frames)
        if count > LAST:
            if self._odd_moulds < MOST_MISSES and (texts := self._texts(frames)):
                heard = len(texts)
                self._misses = 0
                self._hoping = heard == count  # else text is not likely to come next
                self._tell(*self._plain.run(self._stream, texts))
                return heard
            run = self._alike(frames)
        head, size = self._plain.head, self._plain.size
        try:
            for frame in frames[len(run) :]:
                text = frame[size:]
                if frame[:size] != head or b"\n" in text:
                    if self._plain.named and frame[:7] == b"event: ":
                        break  # it is named otherwise
                    _, text = event_of(frame) or NO_EVENT
                run.append(self._decode_plain(text))
        except SLIPS:
            pass
        self._hoping = len(run) == count
        self._misses = 0 if run else self._misses + 1
        self._say(run)
        return len(run)

    def _texts(self, frames: list[bytes]) -> list[str]:
        """The texts of a run whose frames differ in nothing else.

        None: there is none, or it is too short to be worth its own way.
        """
        mould = self._mould
        if mould is None or not frames[0].startswith(mould.before):
            mould = self._mould = Mould.of(frames[0])
        texts = mould.texts(frames) if mould is not None else []
        if len(texts) <= LAST:
            self._odd_moulds += 1
            return []
        self._odd_moulds = 0
        return texts

    def _alike(self, frames: list[bytes]) -> list[Any]:
        """A long run: as far as names tell, else nearly to the end.

        No run where one of its frames is not plain.
        """
        head, size = self._plain.head, self._plain.size
        if not self._plain.named or frames[0][:size] != head:
            head, size, frames = UNNAMED, len(UNNAMED), frames[:-LAST]
        end = 0
        for frame in frames:
            if frame[:size] != head:
                break
            end += 1
        return self._decoded([frame[size:] for frame in frames[:end]])

    def _say(self, run: list[Any]) -> None:
        for pieces, text, said in self._plain.said(self._stream, run) if run else ():
            self._tell(pieces, text, said)

    def _tell(self, pieces: list[str], text: str, said: list[dict[str, Any]]) -> None:
        """Keep what the translator said of a run, and how its text was cut if it said just that."""
        last = said[-1] if said and len(pieces) > 1 else {}
        if last and last["type"] == "content_block_delta" and last["delta"].get("text") == text:
            said[-1] = TextRun(last, pieces)
        self.events += said


def _texts(events: bytes) -> list[bytes]:
    """The data of each, if that is one line behind one with its name; else ``ODD``.

    ``readlines`` jumps from LF to LF: 5 µs for 58 events in 17 KB, where ``split`` takes 11, and 7
    where three of them tell 24 KB of a request again, which are 50 to look through.
    """
    lines = BytesIO(events).readlines()
    names, blank = lines[::3], lines[2::3]
    texts = [line[6:-1] for line in lines[1::3] if line[:6] == b"data: "]
    alike = len(texts) == len(names) == blank.count(b"\n")
    return texts if alike and all(map(bytes.startswith, names, repeat(NAME))) else ODD


def _repeats(frames: list[bytes], last: bytes) -> bool:
    """Whether one of them came twice in a row."""
    return frames[0] == last or any(map(operator.eq, frames, frames[1:]))


def _unheard(frames: list[bytes], last: bytes) -> list[bytes]:
    """Without those that came twice in a row: an event of Responses has a number of its own."""
    return [
        frame
        for before, frame in pairwise([last, *frames])
        if frame != before or not NUMBERED.search(frame)
    ]
