"""Decode an upstream's bytes to Anthropic events, for upstreams with another API than Anthropic's.

All events of a read are decoded by one call, and a run of text deltas is translated as one event
(``text_runs.py``). A ``BatchedTextDelta`` contains the single texts, so that the client still gets
one event for each delta. If a read contains an unusual event, its events are decoded one by one by
the lenient parser.
"""

import operator
import re
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

from proxy.gateway.http.lenient_json import DECODE_ERRORS, LARGE_TEXT
from proxy.gateway.http.sse_encoder import BatchedTextDelta
from translator.dialect import Stream
from translator.openai_responses.types import EventRead
from translator.stream.sse import DONE, ServerSentEvent, SSEDecoder, parse_event

from .lenient_sse import LenientEventParser, join_surrogates
from .text_runs import TEXT_RUNS, Event

NUMBERED: Final = re.compile(rb'"sequence_number": ?[1-9]')
"""A usable sequence number. Some servers send none, or always 0 or -1."""
DATA: Final = b"data: "
LAST_FRAME: Final = DATA + DONE

_decode_responses_events: Final = msgspec.json.Decoder(list[EventRead]).decode


def decode_responses_events(array: bytes) -> list[Event]:
    """Decode events of the Responses API; skip unused fields: 10 µs for 24 KB instead of 24.

    The skipped fields, such as ``tools`` and ``instructions``, must still be valid UTF-8.
    """
    if not array.isascii():
        array.decode()
    return _decode_responses_events(array)  # type: ignore[return-value]  # typed dicts are dicts


DECODERS: Final[dict[str, Callable[[bytes], list[Event]]]] = {
    "chat": msgspec.json.Decoder(list[dict[str, Any]]).decode,
    "responses": decode_responses_events,
}
"""By dialect: a function that decodes a JSON array of events. It raises one of DECODE_ERRORS."""


class ResponseDecoder:
    """Decodes one response.

    After ``feed``, ``events`` contains the Anthropic events of that read.
    """

    def __init__(self, stream: Stream, dialect_name: str) -> None:
        self.events: list[Event] = []
        self._stream = stream
        self._sse = SSEDecoder()
        self._decode_array = DECODERS[dialect_name]
        # its events state their type, and each has its own number
        self._is_responses = dialect_name == "responses"
        self._locate, self._join = TEXT_RUNS[dialect_name]
        self._lenient_parser = LenientEventParser()
        self._last_frame = b""

    def feed(self, raw: bytes) -> None:
        """Decode the bytes of one read. Empty bytes mean that the body has ended.

        Raises BadUpstream for an invalid event; then ``events`` contains the valid events before
        it.
        """
        self.events = []
        frames = self._sse.read_frames(raw)
        if frames and self._is_responses:
            frames = self._without_repeats(frames)
        if frames:
            ended = frames[-1] == LAST_FRAME
            events = self._decode_together(frames[:-1] if ended else frames)
            if events is None:
                self._decode_one_by_one(filter(None, map(parse_event, frames)))
            else:
                self._translate(events)
                self.events += self._stream.end() if ended else ()
        if not raw:
            self._finish()

    def _without_repeats(self, frames: list[bytes]) -> list[bytes]:
        """Drop frames that repeat the previous one: in Responses each event has its own number."""
        last, self._last_frame = self._last_frame, frames[-1]
        if frames[0] != last and not any(map(operator.eq, frames, frames[1:])):
            return frames
        return [
            frame
            for previous, frame in pairwise([last, *frames])
            if frame != previous or not NUMBERED.search(frame)
        ]

    def _decode_together(self, frames: list[bytes]) -> list[Event] | None:
        """Decode all SSE frames by one call; return None if one of them is unusual.

        A usual frame is one ``data`` line. In the Responses API, an ``event`` line precedes it.
        """
        if self._lenient_parser.surrogates is not None:  # all events must pass through it
            return None
        if not frames:
            return []
        parts = [frame.partition(DATA) for frame in frames]
        array = b"[%b]" % b",".join([text for _, _, text in parts])
        if b"\n" in array or len(array) > LARGE_TEXT:  # a large text may have too many values
            return None
        for start in {start for start, _, _ in parts}:
            if start and not self._is_name_line(start):
                return None
        try:
            events = self._decode_array(array)
        except DECODE_ERRORS:
            return None
        return events if len(events) == len(frames) else None

    def _is_name_line(self, start: bytes) -> bool:
        """Return whether the part of a frame before its data is only an ``event`` line."""
        return (
            self._is_responses and start[:7] == b"event: " and start.find(b"\n") == len(start) - 1
        )

    def _decode_one_by_one(self, named: Iterable[ServerSentEvent]) -> None:
        for name, data in named:
            if self._stream.finished:
                return
            events, ended = self._lenient_parser.parse(name, data)
            if (surrogates := self._lenient_parser.surrogates) is not None:
                events = join_surrogates(surrogates, events)
            self._translate(events)
            if ended:
                self.events += self._stream.end()

    def _translate(self, events: list[Event]) -> None:
        """Translate the events. Runs of text deltas are joined and translated as one event."""
        if len(events) < 2:
            self.events += self._stream.feed(*events)
            return
        for location, run in groupby(events, self._locate):
            if location is None:
                self.events += self._stream.feed(*run)
            else:
                self._translate_text([*run])

    def _translate_text(self, run: list[Event]) -> None:
        event, pieces = self._join(run)
        translated = self._stream.feed(event)
        if len(pieces) > 1 and translated:
            last = translated[-1]
            text = last["delta"].get("text") if last["type"] == "content_block_delta" else None
            if text == "".join(pieces):  # else a stop sequence or a tag changed the text
                translated[-1] = BatchedTextDelta(last, pieces)
        self.events += translated

    def _finish(self) -> None:
        """Finish the response when the upstream's body has ended."""
        self._decode_one_by_one(self._sse.end())
        self.events += self._stream.feed(*self._lenient_parser.flush())
        if not self._stream.finished:
            self.events += self._stream.end()
