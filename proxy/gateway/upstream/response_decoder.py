"""Decode an upstream's bytes to Anthropic events, for upstreams with another API than Anthropic's.

A run of text deltas in a read is translated as one event (``text_runs.py``). A
``BatchedTextDelta`` contains the single texts, so that the client still gets one event for each
delta. If a read contains an unusual event, its events are decoded one by one by the lenient parser.
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

DecodedRun = tuple[list[Event], list[str]]
"""Consecutive events; or one event with the joined text of a run of deltas, and their texts."""

LOCATION: Final = operator.itemgetter(0)

DECODERS: Final[dict[str, Callable[[bytes], Event]]] = {
    "chat": msgspec.json.Decoder(dict[str, Any]).decode,
    # Skips unused fields: 10 µs for 24 KB instead of 24. Typed dicts are dicts.
    "responses": msgspec.json.Decoder(EventRead).decode,  # type: ignore[dict-item]
}
"""By dialect: a function that decodes the JSON of an event. It raises one of DECODE_ERRORS."""


class ResponseDecoder:
    """Decodes one response.

    After ``feed``, ``events`` contains the Anthropic events of that read.
    """

    def __init__(self, stream: Stream, dialect_name: str) -> None:
        self.events: list[Event] = []
        self._stream = stream
        self._sse = SSEDecoder()
        self._decode = DECODERS[dialect_name]
        # its events state their type, and each has its own number
        self._is_responses = dialect_name == "responses"
        self._read_piece, self._set_text = TEXT_RUNS[dialect_name]
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
            runs = self._decode_together(frames[:-1] if ended else frames)
            if runs is None:
                self._decode_one_by_one(filter(None, map(parse_event, frames)))
            else:
                for events, pieces in runs:
                    self._translate(events, pieces)
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

    def _decode_together(self, frames: list[bytes]) -> list[DecodedRun] | None:
        """Decode all SSE frames of a read; return None if one of them is unusual.

        A usual frame is one ``data`` line. In the Responses API, an ``event`` line precedes it.
        """
        if self._lenient_parser.surrogates is not None:  # all events must pass through it
            return None
        parts = [frame.partition(DATA) for frame in frames]
        texts = [text for _, _, text in parts]
        joined = b",".join(texts)
        if b"\n" in joined or len(joined) > LARGE_TEXT:  # a large text may have too many values
            return None
        for start in {start for start, _, _ in parts}:
            if start and not self._is_name_line(start):
                return None
        try:
            if not joined.isascii():  # fields that are skipped must be valid UTF-8 too
                joined.decode()
            return self._decode_runs(texts)
        except DECODE_ERRORS:
            return None

    def _decode_runs(self, texts: list[bytes]) -> list[DecodedRun]:
        """Decode the JSON texts of events. Runs of text deltas are joined to one event."""
        if len(texts) < 2:
            return [(list(map(self._decode, texts)), [])]
        runs: list[DecodedRun] = []
        start = 0
        for location, run in groupby(map(self._read_piece, texts), LOCATION):
            pieces = [text for _, text in run]
            end = start + len(pieces)
            if location is None:
                runs.append((list(map(self._decode, texts[start:end])), []))
            else:
                event = self._decode(texts[start])
                self._set_text(event, "".join(pieces))
                runs.append(([event], pieces))
            start = end
        return runs

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
            self._translate(events, [])
            if ended:
                self.events += self._stream.end()

    def _translate(self, events: list[Event], pieces: list[str]) -> None:
        """Translate events. ``pieces``: the single texts, if the event is a joined text delta."""
        translated = self._stream.feed(*events)
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
