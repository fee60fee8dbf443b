"""Encode a request and its response as pieces, and the upstream's raw stream as compressed bytes.

This module does not use the database. The zstd dictionary of a raw stream is the text of the system
prompt and tools in its request, because events of OpenAI's APIs repeat that text. So no dictionary
has to be stored.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import zstandard

from proxy.encryption.bodies import new_salt
from proxy.ledger.journal.records import Chunk

from . import body_parts, part_codec
from .body_parts import Piece, SplitBody
from .part_codec import pack, unpack

# At this level a raw stream of 53 KB takes 0.10 ms and 4.1 KB; at level 9, 0.42 ms and 3.8 KB.
STREAM_LEVEL: Final = 3
MAX_DICTIONARIES: Final = 16  # each takes the memory of its text and 1 MB for tables
MIN_DICTIONARY: Final = 8  # bytes; zstd accepts no shorter dictionary

ANSWER: Final = "said"
"""The key with the response's part id in a stored transcript; it cannot change, as it is stored."""

MAX_FAILED_BYTES: Final = 64 * 1024
"""Stored bytes of a failed attempt's response; the gateway reads as many bytes of an error body."""

Read = tuple[float, bytes]  # milliseconds since the attempt began, and the bytes of one read


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A response before the last one: an error, or a stream before a retry or a search."""

    number: int  # index of the attempt among all attempts of the request, from 0
    upstream: str
    model: str
    status: int
    body: Piece

    def as_dict(self) -> dict[str, Any]:
        """Return the attempt for display, with its number counted from 1 and its body as text."""
        return {
            "attempt": self.number + 1,
            "upstream": self.upstream,
            "model": self.model,
            "status": self.status,
            "body": self.body.text.decode("utf-8", "replace"),
        }


@dataclass(slots=True)
class Conversation:
    """The transcript of one request and its response, in pieces without database ids."""

    exchange_id: str
    created: datetime
    request: SplitBody | None = None
    raw_body: Piece | None = None  # a request body that cannot be split
    answer: Mapping[str, Any] | None = None
    answer_piece: Piece | None = None  # the response as the message that the next request repeats
    reads: Sequence[Read] = ()
    failed: Sequence[FailedAttempt] = ()
    target: Mapping[str, Any] = field(default_factory=dict)
    upstream_request_sha256: str = ""
    stream: bytes | None = None  # the compressed reads, set by pack()
    salt: bytes = field(default_factory=new_salt)  # it precedes all other data in the digest
    _chain: list[bytes] | None = None
    _digest: bytes = b""  # pack() sets this

    @classmethod
    def from_body(cls, exchange_id: str, created: datetime, body: bytes) -> "Conversation":
        """Split a request body; a body that cannot be split is stored as it is."""
        try:
            return cls(exchange_id, created, body_parts.split_body(body))
        except (msgspec.MsgspecError, body_parts.CannotSplit, RecursionError, ValueError):
            return cls.from_raw_body(exchange_id, created, body)

    @classmethod
    def from_raw_body(cls, exchange_id: str, created: datetime, body: bytes) -> "Conversation":
        """Use the whole request body as one piece, without splitting it."""
        return cls(exchange_id, created, raw_body=Piece(hashlib.sha256(body).digest(), body))

    def set_answer(self, answer: Mapping[str, Any] | None) -> None:
        self.answer = answer
        if answer is not None:
            self.answer_piece = body_parts.piece(
                {"role": "assistant", "content": answer.get("content")}
            )

    @property
    def messages(self) -> list[Piece]:
        pieces = self.request.fields.get("messages") if self.request else None
        return pieces if isinstance(pieces, list) else []

    @property
    def chain(self) -> list[bytes]:
        """The digests of all prefixes of the messages: the first message, the first two, ..."""
        if self._chain is None:
            self._chain = body_parts.prefix_digests(self.messages)
        return self._chain

    def pieces(self) -> list[Piece]:
        """Return all pieces of the transcript in a fixed order."""
        pieces = [piece for piece in (self.raw_body, self.answer_piece) if piece]
        if self.request:
            pieces.append(self.request.envelope)
            for value in self.request.fields.values():
                pieces += [value] if isinstance(value, Piece) else value
        return pieces + [each.body for each in self.failed]

    def dictionary(self) -> bytes:
        """Return the zstd dictionary of the stream: the request's ``system`` and ``tools`` texts.

        The upstream's stream is likely to repeat them.
        """
        if self.request is None:
            return b""
        values = (self.request.fields.get(name) for name in ("system", "tools"))
        groups = ([one] if isinstance(one, Piece) else one for one in values if one)
        return b"".join(piece.text for group in groups for piece in group)

    def pack(self, packing: "StreamCompressor") -> None:
        """Compress the reads and drop them, because they take fifty times as much memory.

        The digest is computed here, so later changes of the transcript do not change it. A second
        call does nothing.
        """
        if self._digest:
            return
        encoded = _encode_stream(self.reads)
        self.stream = packing.stream(encoded, self.dictionary())
        self._digest = self._digest_with(encoded)
        self.reads = ()

    def digest(self) -> bytes:
        """Return the digest of all stored data, which the hash chain has as ``body_digest``."""
        return self._digest or self._digest_with(_encode_stream(self.reads))

    def _digest_with(self, stream: Iterable[bytes]) -> bytes:
        digests = [piece.digest for piece in self.pieces()]
        digest = hashlib.sha256(b"".join((self.salt, *digests)))
        for some in stream:
            digest.update(some)
        digest.update(pack(manifest_metadata(self)))
        return digest.digest()


def reads_of(chunks: Sequence[Chunk], last: int = 0) -> list[Read]:
    """Return the reads of the stream of the last upstream attempt; none if it returned an error.

    ``last``: the number of the last attempt in the close record; a chunk may have a higher number.
    """
    last = _last(chunks, last)
    return [read for chunk in chunks if _is_stream(chunk, last) for read in chunk.reads]


def failed_attempts_of(
    chunks: Sequence[Chunk], target: Mapping[str, Any], last: int = 0
) -> list[FailedAttempt]:
    """Return the responses to all attempts but a successful last one.

    ``target``: the target of chunks without their own. ``last``: the number of the last attempt.
    """
    last = _last(chunks, last)
    by_attempt: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        if not _is_stream(chunk, last):
            by_attempt.setdefault(chunk.attempt, []).append(chunk)
    failed = []
    for number, some in sorted(by_attempt.items()):
        body = b"".join(raw for chunk in some for _, raw in chunk.reads)[:MAX_FAILED_BYTES]
        own = some[0].target or target
        failed.append(
            FailedAttempt(
                number,
                own.get("upstream", ""),
                own.get("model", ""),
                some[0].status,
                Piece(hashlib.sha256(body).digest(), body),
            )
        )
    return failed


def _last(chunks: Sequence[Chunk], last: int) -> int:
    return max([last, *(chunk.attempt for chunk in chunks)])


def _is_stream(chunk: Chunk, last: int) -> bool:
    return chunk.attempt == last and chunk.status == 200


def manifest_metadata(one: Conversation) -> dict[str, Any]:
    """Return the content of a transcript's manifest without the ids of its parts."""
    answer = dict(one.answer) if one.answer is not None else None
    if answer is not None:
        # The content is stored as a part; None preserves the order of the keys.
        answer["content"] = None
    rest: dict[str, Any] = {
        "marks": one.request.marks if one.request else [],
        "answer": answer,
        "target": dict(one.target),
        "sha": one.upstream_request_sha256,
    }
    if one.failed:  # otherwise the key is left out, because older digests were computed without it
        rest["failed"] = [[f.number, f.upstream, f.model, f.status] for f in one.failed]
    return rest


def differences(numbers: Sequence[int]) -> list[int]:
    """Return each number minus the previous number, as input for ``running_totals``."""
    return [number - before for number, before in zip(numbers, (0, *numbers), strict=False)]


def running_totals(steps: Iterable[int]) -> list[int]:
    """Return the numbers from which ``differences`` computed the steps."""
    total, numbers = 0, []
    for step in steps:
        total += step
        numbers.append(total)
    return numbers


def _encode_stream(reads: Sequence[Read]) -> list[bytes]:
    """Return the MessagePack encoding of ``(times, sizes, body)``, in one or more byte strings.

    Times are the intervals between the reads, in tenths of a millisecond. The reads of a large body
    are not joined, because then a response of several hours would be in memory twice.
    """
    if not reads:
        return []
    times = differences([round(ms * 10) for ms, _ in reads])
    bodies = [body for _, body in reads]
    sizes = list(map(len, bodies))
    encoded = [ARRAY_OF_3, pack(times), pack(sizes), _head_of(sum(sizes)), *bodies]
    return [b"".join(encoded)] if sum(sizes) <= JOINED_BYTES else encoded


ARRAY_OF_3: Final = b"\x93"
JOINED_BYTES: Final = 256 * 1024
"""The reads of a smaller body are joined, because each call to hash or compress releases the
interpreter lock and must acquire it again. Hashing and compressing 100 reads takes 160 us one by
one, and 87 us joined."""


def _head_of(size: int) -> bytes:
    """Return the MessagePack header of a byte string of this size."""
    for mark, width in ((0xC4, 1), (0xC5, 2)):
        if size < 1 << 8 * width:
            return bytes([mark]) + size.to_bytes(width, "big")
    return b"\xc6" + size.to_bytes(4, "big")


class StreamCompressor:
    """Caches zstd compressors by dictionary: the requests of a session have the same dictionary.

    Loading the dictionary takes most of the time: the first stream of 160 KB takes 130 µs, the
    next stream with the same compressor 37 µs.
    """

    def __init__(self) -> None:
        self.small = part_codec.compressor()
        self._by_dictionary: dict[bytes, zstandard.ZstdCompressor] = {}

    def stream(self, encoded: list[bytes], dictionary: bytes) -> bytes | None:
        """Return the byte strings as one zstd frame; None if the list is empty."""
        if not encoded:
            return None
        compressor = self._by_dictionary.get(dictionary)
        if compressor is None:
            if len(self._by_dictionary) == MAX_DICTIONARIES:
                self._by_dictionary.clear()
            compressor = zstandard.ZstdCompressor(level=STREAM_LEVEL, dict_data=_dict(dictionary))
            self._by_dictionary[dictionary] = compressor
        packing = compressor.compressobj(size=sum(map(len, encoded)))
        return b"".join([*map(packing.compress, encoded), packing.flush()])


def _dict(text: bytes) -> zstandard.ZstdCompressionDict | None:
    if len(text) < MIN_DICTIONARY:
        return None
    return zstandard.ZstdCompressionDict(text, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def reads_in(stream: bytes, dictionary: bytes) -> list[Read]:
    """Decompress the reads of a stored stream."""
    encoded = zstandard.ZstdDecompressor(dict_data=_dict(dictionary)).decompress(stream)
    times, sizes, body = unpack(encoded)
    reads, at = [], 0
    for tenths, size in zip(running_totals(times), sizes, strict=True):
        reads.append((tenths / 10, body[at : at + size]))
        at += size
    return reads
