"""One conversation in pieces, and its raw stream as bytes: the pure half of the transcripts.

The raw stream is compressed against the request's own system and tools, which OpenAI's events
repeat: no other dictionary has to be kept.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import zstandard

from . import frames, parts
from .parts import Parted, Piece
from .records import Chunk

STREAM_LEVEL: Final = 3  # of raw streams, 53 KB on average: 0.10 ms, 4.1 KB; 9: 0.42 ms, 3.8 KB
MOST_DICTIONARIES: Final = 16  # each keeps its text and a megabyte of tables
LEAST_DICTIONARY: Final = 8  # bytes; zstd's own bound

pack: Final = msgspec.msgpack.Encoder().encode
unpack: Final = msgspec.msgpack.Decoder().decode

MOST_FAILED_BYTES: Final = 64 * 1024
"""Of what an attempt that failed was told: as much as the gateway reads of an error."""

Read = tuple[float, bytes]  # milliseconds since the dial, bytes as they were read


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What an upstream said instead of an answer, or of one that another attempt gave anew."""

    number: int  # among the row's attempts, from 0
    upstream: str
    model: str
    status: int
    body: Piece

    def told(self) -> dict[str, Any]:
        """For people and their tools: counted from 1, the body as text."""
        return {
            "attempt": self.number + 1,
            "upstream": self.upstream,
            "model": self.model,
            "status": self.status,
            "body": self.body.text.decode("utf-8", "replace"),
        }


@dataclass(slots=True)
class Conversation:
    """What one exchange brings to the transcripts, before the database knows its parts."""

    exchange_id: str
    created: datetime
    request: Parted | None = None
    raw: Piece | None = None  # a body that is not JSON we can keep in pieces
    answer: Mapping[str, Any] | None = None
    said: Piece | None = None  # the answer as the next request will repeat it
    reads: Sequence[Read] = ()
    failed: Sequence[FailedAttempt] = ()
    target: Mapping[str, Any] = field(default_factory=dict)
    upstream_request_sha256: str = ""
    stream: bytes | None = None  # the reads, once they are packed
    _chain: list[bytes] | None = None
    _digest: bytes = b""  # likewise

    @classmethod
    def of(cls, exchange_id: str, created: datetime, body: bytes) -> "Conversation":
        try:
            return cls(exchange_id, created, parts.take_apart(body))
        except (msgspec.MsgspecError, parts.NotParted, RecursionError, ValueError):
            return cls.faulty(exchange_id, created, body)

    @classmethod
    def faulty(cls, exchange_id: str, created: datetime, body: bytes) -> "Conversation":
        """Of a body that is kept as it came, whatever it is."""
        return cls(exchange_id, created, raw=Piece(hashlib.sha256(body).digest(), body))

    def take_answer(self, answer: Mapping[str, Any] | None) -> None:
        self.answer = answer
        if answer is not None:
            self.said = parts.piece({"role": "assistant", "content": answer.get("content")})

    @property
    def messages(self) -> list[Piece]:
        pieces = self.request.fields.get("messages") if self.request else None
        return pieces if isinstance(pieces, list) else []

    @property
    def chain(self) -> list[bytes]:
        """See ``parts.chained``."""
        if self._chain is None:
            self._chain = parts.chained(self.messages)
        return self._chain

    def pieces(self) -> list[Piece]:
        """Every piece that a manifest of this conversation names, in a fixed order."""
        found = [piece for piece in (self.raw, self.said) if piece]
        if self.request:
            found.append(self.request.envelope)
            for held in self.request.fields.values():
                found += [held] if isinstance(held, Piece) else held
        return found + [each.body for each in self.failed]

    def dictionary(self) -> bytes:
        """Text that the upstream's stream is likely to repeat."""
        if self.request is None:
            return b""
        held = (self.request.fields.get(name) for name in ("system", "tools"))
        groups = ([one] if isinstance(one, Piece) else one for one in held if one)
        return b"".join(piece.text for group in groups for piece in group)

    def pack(self, packing: "Packing") -> None:
        """Compress the reads and let them go: they take fifty times as much. Twice is once.

        Nothing else may change afterwards, for the digest is taken as well.
        """
        if self._digest:
            return
        plain = _stream_plain(self.reads)
        self.stream = packing.stream(plain, self.dictionary())
        self._digest = self._digest_with(plain)
        self.reads = ()

    def digest(self) -> bytes:
        """Over everything that is kept: the seal's ``body_digest``."""
        return self._digest or self._digest_with(_stream_plain(self.reads))

    def _digest_with(self, stream: Iterable[bytes]) -> bytes:
        digests = [piece.digest for piece in self.pieces()]
        whole = hashlib.sha256(b"".join(digests))
        for some in stream:
            whole.update(some)
        whole.update(pack(rest_of(self)))
        return whole.digest()


def reads_of(chunks: Sequence[Chunk], last: int = 0) -> list[Read]:
    """The stream of the attempt that answered: of the last one. None of an error's body.

    ``last``: its number, as far as it is known; one of which there are reads may be later.
    """
    last = _last(chunks, last)
    return [read for chunk in chunks if _is_stream(chunk, last) for read in chunk.reads]


def failed_of(
    chunks: Sequence[Chunk], target: Mapping[str, Any], last: int = 0
) -> list[FailedAttempt]:
    """What the other attempts were told. ``target``: of the first one, which names none."""
    last = _last(chunks, last)
    said: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        if not _is_stream(chunk, last):
            said.setdefault(chunk.attempt, []).append(chunk)
    return [_failed(some, some[0].target or target) for _, some in sorted(said.items())]


def _last(chunks: Sequence[Chunk], last: int) -> int:
    return max([last, *(chunk.attempt for chunk in chunks)])


def _is_stream(chunk: Chunk, last: int) -> bool:
    return chunk.attempt == last and chunk.status == 200


def _failed(chunks: Sequence[Chunk], target: Mapping[str, Any]) -> FailedAttempt:
    body = b"".join(raw for chunk in chunks for _, raw in chunk.reads)[:MOST_FAILED_BYTES]
    return FailedAttempt(
        chunks[0].attempt,
        target.get("upstream", ""),
        target.get("model", ""),
        chunks[0].status,
        Piece(hashlib.sha256(body).digest(), body),
    )


def rest_of(one: Conversation) -> dict[str, Any]:
    """What a manifest says beside part ids."""
    answer = dict(one.answer) if one.answer is not None else None
    if answer is not None:
        answer["content"] = None  # the part ``said`` has it; the key keeps its place
    rest: dict[str, Any] = {
        "marks": one.request.marks if one.request else [],
        "answer": answer,
        "target": dict(one.target),
        "sha": one.upstream_request_sha256,
    }
    if one.failed:  # else there is no word of it, and older digests hold
        rest["failed"] = [[f.number, f.upstream, f.model, f.status] for f in one.failed]
    return rest


def differences(numbers: Sequence[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, (0, *numbers), strict=False)]


def summed(steps: Iterable[int]) -> list[int]:
    total, numbers = 0, []
    for step in steps:
        total += step
        numbers.append(total)
    return numbers


def _stream_plain(reads: Sequence[Read]) -> list[bytes]:
    """Times first, as tenths of a millisecond between reads; then all bytes in one piece.

    It is MessagePack of ``(times, sizes, body)``, and comes in pieces where it is large: the body
    of an answer that goes on for hours need not be there twice.
    """
    if not reads:
        return []
    times = differences([round(ms * 10) for ms, _ in reads])
    bodies = [body for _, body in reads]
    sizes = list(map(len, bodies))
    plain = [ARRAY_OF_3, pack(times), pack(sizes), _head_of(sum(sizes)), *bodies]
    return [b"".join(plain)] if sum(sizes) <= JOINED_BYTES else plain


ARRAY_OF_3: Final = b"\x93"
JOINED_BYTES: Final = 256 * 1024
"""To digest or compress a piece lets go of the interpreter, which must then be waited for: both
took 160 us for 100 reads as they came, and 87 for all of them in one.
"""


def _head_of(size: int) -> bytes:
    """What stands before so many bytes in MessagePack."""
    for mark, width in ((0xC4, 1), (0xC5, 2)):
        if size < 1 << 8 * width:
            return bytes([mark]) + size.to_bytes(width, "big")
    return b"\xc6" + size.to_bytes(4, "big")


class Packing:
    """Compressors for some conversations: the turns of a session bring the same dictionary.

    Loading it takes three quarters of the time (130 us for 160 KB of stream, then 37).
    """

    def __init__(self) -> None:
        self.small = frames.compressor()
        self._by_dictionary: dict[bytes, zstandard.ZstdCompressor] = {}

    def stream(self, plain: list[bytes], dictionary: bytes) -> bytes | None:
        """One frame of these bytes; None: nothing was read."""
        if not plain:
            return None
        compressor = self._by_dictionary.get(dictionary)
        if compressor is None:
            if len(self._by_dictionary) == MOST_DICTIONARIES:
                self._by_dictionary.clear()
            compressor = zstandard.ZstdCompressor(level=STREAM_LEVEL, dict_data=_dict(dictionary))
            self._by_dictionary[dictionary] = compressor
        packing = compressor.compressobj(size=sum(map(len, plain)))
        return b"".join([*map(packing.compress, plain), packing.flush()])


def _dict(text: bytes) -> zstandard.ZstdCompressionDict | None:
    if len(text) < LEAST_DICTIONARY:
        return None
    return zstandard.ZstdCompressionDict(text, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def reads_in(stream: bytes, dictionary: bytes) -> list[Read]:
    plain = zstandard.ZstdDecompressor(dict_data=_dict(dictionary)).decompress(stream)
    times, sizes, body = unpack(plain)
    reads, at = [], 0
    for tenths, size in zip(summed(times), sizes, strict=True):
        reads.append((tenths / 10, body[at : at + size]))
        at += size
    return reads
