"""Store and load transcripts: parts, a manifest that refers to parts, and the upstream's stream.

A part is a piece of a request or response that several transcripts may share, such as a message. A
manifest is MessagePack compressed with zstd: the part ids of the request (each id as the difference
to the previous id, so that 100 consecutive ids take 100 bytes), the response and the target. With a
body key, all three are encrypted after they are compressed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import zstandard

from proxy.encryption.bodies import MissingBodyKey, keyed_digest
from proxy.ledger.database.bulk_sql import padded_keys, select, slices, write
from proxy.models import BodyKeyUse, Part, Transcript

from . import body_parts
from .body_parts import Piece, SplitBody
from .encoding import (
    ANSWER,
    Conversation,
    FailedAttempt,
    Read,
    StreamCompressor,
    differences,
    manifest_metadata,
    reads_in,
    running_totals,
)
from .part_codec import (
    decode_manifest,
    decode_part,
    decode_stream,
    encode_manifest,
    encode_part,
    encode_stream,
)


def store(conversations: Sequence[Conversation], now: datetime) -> dict[str, bytes]:
    """Insert or replace the transcripts. The caller has the ledger lock.

    Returns the body digests by exchange id.
    """
    compressor = StreamCompressor()
    for one in conversations:
        one.pack(compressor)  # this does nothing if it was called before
    ids = _part_ids(conversations, now, compressor)
    rows = [
        {
            "exchange_id": one.exchange_id,
            "created": one.created,
            "prefix": keyed_digest(one.chain[-1]) if one.chain else bytes(16),
            "manifest": encode_manifest(compressor.small, one.exchange_id, _manifest(one, ids)),
            "stream": encode_stream(one.exchange_id, one.stream),
        }
        for one in conversations
    ]
    write(Transcript, rows, replaced=("created", "prefix", "manifest", "stream"))
    BodyKeyUse.note_current()
    return {one.exchange_id: one.digest() for one in conversations}


def _part_ids(
    conversations: Sequence[Conversation], now: datetime, compressor: StreamCompressor
) -> dict[bytes, int]:
    """Return the part ids of all pieces, by digest; insert parts for new pieces."""
    pieces = {piece.digest: piece for one in conversations for piece in one.pieces()}
    hour = now.replace(minute=0, second=0, microsecond=0)
    known = part_ids(list(pieces))
    # This updates ``used``, so that the parts are not pruned.
    for some in slices([keyed_digest(digest) for digest in known]):
        Part.objects.filter(digest__in=padded_keys(some), used__lt=hour).update(used=hour)
    fresh = [piece for digest, piece in pieces.items() if digest not in known]
    rows = [
        {
            "digest": digest,
            "size": len(piece.text),
            "data": encode_part(compressor.small, digest, piece.text),
            "used": hour,
        }
        for piece in fresh
        for digest in (keyed_digest(piece.digest),)
    ]
    write(Part, rows)
    return known | part_ids([piece.digest for piece in fresh])


def part_ids(digests: list[bytes]) -> dict[bytes, int]:
    """Return the ids of stored parts, by the digest of their text.

    With a body key, only parts that this key encrypted are found.
    """
    plain = {keyed_digest(digest): digest for digest in digests}
    found = select(Part, ("digest", "id"), "digest", list(plain))
    return {plain[bytes(stored)]: pk for stored, pk in found}


def _manifest(one: Conversation, ids: Mapping[bytes, int]) -> dict[str, Any]:
    manifest = {"v": 1, **manifest_metadata(one)}
    if one.salt:
        manifest["salt"] = one.salt
    if one.raw_body:
        manifest["raw"] = ids[one.raw_body.digest]
    if one.answer_piece:
        manifest[ANSWER] = ids[one.answer_piece.digest]
    if one.request:
        manifest["envelope"] = ids[one.request.envelope.digest]
        manifest["fields"] = {
            name: ids[value.digest]
            if isinstance(value, Piece)
            else differences([ids[piece.digest] for piece in value])
            for name, value in one.request.fields.items()
        }
    if one.failed:
        manifest["failed"] = [
            [*columns, ids[each.body.digest]]
            for columns, each in zip(manifest["failed"], one.failed, strict=True)
        ]
    return manifest


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """A stored request and its response.

    ``answer``: the response as an Anthropic message; None if no response was stored.
    """

    exchange_id: str
    request: dict[str, Any]
    answer: dict[str, Any] | None
    upstream_reads: list[Read]
    """The upstream's stream in the last attempt; empty if the upstream returned an error."""
    target: dict[str, Any]
    upstream_request_sha256: str
    conversation: Conversation
    """The same transcript in pieces, to verify digests."""

    @property
    def failed(self) -> Sequence[FailedAttempt]:
        """The responses to failed upstream attempts in order; attempts without one are left out."""
        return self.conversation.failed

    @property
    def upstream_body(self) -> bytes:
        """All bytes of the upstream's response: its stream, or else the last error body."""
        if self.upstream_reads or not self.failed:
            return b"".join(raw for _, raw in self.upstream_reads)
        return self.failed[-1].body.text


def read(exchange_id: str) -> StoredTranscript | None:
    """Load a transcript. Raises BrokenTranscript or its subclass EncryptedTranscript.

    Returns None if there is none: the team stores metadata only, or the transcript was pruned.
    """
    row = Transcript.objects.filter(pk=exchange_id).first()
    return None if row is None else load(row)


StoredPart = tuple[int, bytes | memoryview, bytes | memoryview]
"""The id, the stored digest and the data of a part."""


def load(row: Transcript, parts: Iterable[StoredPart] | None = None) -> StoredTranscript:
    """Decode a stored transcript. Raises BrokenTranscript or its subclass EncryptedTranscript.

    ``parts``: its parts, if they are not in the database.
    """
    try:
        one = _conversation(row, parts)
        message = body_parts.decode_json(one.answer_piece.text) if one.answer_piece else None
        answer = dict(one.answer) if one.answer is not None else None
        if answer is not None and message is not None:
            answer["content"] = message["content"]
        return StoredTranscript(
            row.exchange_id,
            _request(one),
            answer,
            list(one.reads),
            dict(one.target),
            one.upstream_request_sha256,
            one,
        )
    except MissingBodyKey as missing:
        raise EncryptedTranscript(missing.key_id) from None
    except (LookupError, ValueError, TypeError, zstandard.ZstdError) as exc:
        raise BrokenTranscript(f"its transcript cannot be read: {exc}") from exc


class BrokenTranscript(Exception):
    """A stored transcript cannot be decoded, or parts of it are missing."""


class EncryptedTranscript(BrokenTranscript):
    """A stored transcript is encrypted with a key that this gateway does not have."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(f"its transcript is {MissingBodyKey(key_id)}")


def _request(one: Conversation) -> dict[str, Any]:
    if one.request is None:
        return {"raw": one.raw_body.text.decode("utf-8", "replace")} if one.raw_body else {}
    values = {
        name: body_parts.decode_json(value.text)
        if isinstance(value, Piece)
        else [body_parts.decode_json(piece.text) for piece in value]
        for name, value in one.request.fields.items()
    }
    return body_parts.join_body(
        body_parts.decode_json(one.request.envelope.text), values, one.request.marks
    )


def _conversation(row: Transcript, parts: Iterable[StoredPart] | None = None) -> Conversation:
    """Return the pieces of a stored transcript, with digests computed from the loaded bytes."""
    manifest = decode_manifest(row.exchange_id, row.manifest)
    if parts is None:
        parts = stored_parts(part_ids_in(manifest))
    texts: dict[int, Piece] = {}
    for pk, digest, data in parts:
        text = decode_part(digest, data)
        texts[pk] = Piece(hashlib.sha256(text).digest(), text)
    one = Conversation(
        row.exchange_id,
        row.created,
        answer=manifest["answer"],
        target=manifest["target"],
        upstream_request_sha256=manifest["sha"],
        salt=manifest.get("salt", b""),
    )
    if "raw" in manifest:
        one.raw_body = texts[manifest["raw"]]
    if ANSWER in manifest:
        one.answer_piece = texts[manifest[ANSWER]]
    if "envelope" in manifest:
        named = {
            name: texts[value] if isinstance(value, int) else [texts[pk] for pk in value]
            for name, value in fields_in(manifest).items()
        }
        one.request = SplitBody(texts[manifest["envelope"]], named, manifest["marks"])
    one.failed = [
        FailedAttempt(number, upstream, model, status, texts[pk])
        for number, upstream, model, status, pk in manifest.get("failed", ())
    ]
    if row.stream is not None:
        one.reads = reads_in(decode_stream(row.exchange_id, row.stream), one.dictionary())
    return one


def part_ids_in(manifest: Mapping[str, Any]) -> set[int]:
    """Return the ids of all parts to which the manifest of a transcript refers."""
    ids = {manifest[name] for name in ("raw", ANSWER, "envelope") if name in manifest}
    ids.update(each[-1] for each in manifest.get("failed", ()))
    for value in fields_in(manifest).values():
        ids.update([value] if isinstance(value, int) else value)
    return ids


def fields_in(manifest: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """Return the part ids of the split fields of the request in a manifest."""
    return {
        name: value if isinstance(value, int) else running_totals(value)
        for name, value in manifest.get("fields", {}).items()
    }


def stored_parts(ids: Iterable[int]) -> Iterator[StoredPart]:
    yield from select(Part, ("id", "digest", "data"), "id", sorted(ids))  # type: ignore[misc]


def readable_texts(ids: Iterable[int]) -> dict[int, bytes]:
    """Return the texts of parts, by id; missing and damaged parts are left out."""
    found: dict[int, bytes] = {}
    for pk, digest, data in stored_parts(ids):
        with suppress(zstandard.ZstdError, ValueError):
            found[pk] = decode_part(digest, data)
    return found
