"""Transcripts in the database: manifests that name parts, and the upstream's raw stream.

A manifest is zstd of MessagePack: what the request is made of by part id (ids as differences, so
that a hundred neighbours take a hundred bytes), the answer, who answered.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import zstandard

from proxy.models import Part, Transcript

from . import frames, parts
from .conversation import (
    Conversation,
    FailedAttempt,
    Packing,
    Read,
    differences,
    pack,
    reads_in,
    rest_of,
    summed,
    unpack,
)
from .parts import Parted, Piece
from .statements import MOST_KEYS, evened, select, write


def store(conversations: Sequence[Conversation], now: datetime) -> dict[str, bytes]:
    """Keep the conversations; one that is there already is written anew. Holds the ledger lock.

    What comes back is the digest of each body, by exchange.
    """
    packing = Packing()
    for one in conversations:
        one.pack(packing)  # the drainer's are packed already, as soon as each was decoded
    ids = _part_ids(conversations, now, packing)
    rows = [
        {
            "exchange_id": one.exchange_id,
            "created": one.created,
            "prefix": one.chain[-1] if one.chain else bytes(16),
            "manifest": packing.small(pack(_manifest(one, ids))),
            "stream": one.stream,
        }
        for one in conversations
    ]
    write(Transcript, rows, replaced=("created", "prefix", "manifest", "stream"))
    return {one.exchange_id: one.digest() for one in conversations}


def _part_ids(
    conversations: Sequence[Conversation], now: datetime, packing: Packing
) -> dict[bytes, int]:
    """Ids of all pieces by digest; the ones nobody has named before are inserted."""
    pieces = {piece.digest: piece for one in conversations for piece in one.pieces()}
    hour = now.replace(minute=0, second=0, microsecond=0)
    known = _known(list(pieces))
    for some in _slices(list(known)):  # what is named now is not pruned
        Part.objects.filter(digest__in=evened(some), used__lt=hour).update(used=hour)
    fresh = [piece for digest, piece in pieces.items() if digest not in known]
    rows = [
        {
            "digest": piece.digest,
            "size": len(piece.text),
            "data": packing.small(piece.text),
            "used": hour,
        }
        for piece in fresh
    ]
    write(Part, rows)
    return known | _known([piece.digest for piece in fresh])


def _known(digests: list[bytes]) -> dict[bytes, int]:
    return {bytes(digest): pk for digest, pk in select(Part, ("digest", "id"), "digest", digests)}


def _slices(values: list[Any]) -> Iterable[list[Any]]:
    return (values[at : at + MOST_KEYS] for at in range(0, len(values), MOST_KEYS))


def _manifest(one: Conversation, ids: Mapping[bytes, int]) -> dict[str, Any]:
    manifest = {"v": 1, **rest_of(one)}
    if one.raw:
        manifest["raw"] = ids[one.raw.digest]
    if one.said:
        manifest["said"] = ids[one.said.digest]
    if one.request:
        manifest["envelope"] = ids[one.request.envelope.digest]
        manifest["fields"] = {
            name: ids[held.digest]
            if isinstance(held, Piece)
            else differences([ids[piece.digest] for piece in held])
            for name, held in one.request.fields.items()
        }
    if one.failed:
        manifest["failed"] = [
            [*told, ids[each.body.digest]]
            for told, each in zip(manifest["failed"], one.failed, strict=True)
        ]
    return manifest


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """One exchange as it was said. ``answer`` is the Anthropic message, None when none was kept."""

    exchange_id: str
    request: dict[str, Any]
    answer: dict[str, Any] | None
    upstream_reads: list[Read]
    """The stream of the attempt that answered; none where the last one was told an error."""
    target: dict[str, Any]
    upstream_request_sha256: str
    conversation: Conversation
    """The same in pieces, for whoever checks digests."""

    @property
    def failed(self) -> Sequence[FailedAttempt]:
        """What the attempts that failed were told, in order; none of those that heard nothing."""
        return self.conversation.failed

    @property
    def upstream_body(self) -> bytes:
        """Every byte of the answer, be it a stream or the last error; empty: nothing came."""
        if self.upstream_reads or not self.failed:
            return b"".join(raw for _, raw in self.upstream_reads)
        return self.failed[-1].body.text


def read(exchange_id: str) -> StoredTranscript | None:
    """None: nothing is kept (metadata only, or pruned). Raises BrokenTranscript."""
    row = Transcript.objects.filter(pk=exchange_id).first()
    return None if row is None else load(row)


def load(row: Transcript) -> StoredTranscript:
    try:
        one = _conversation(row)
        said = parts.decode_json(one.said.text) if one.said else None
        answer = dict(one.answer) if one.answer is not None else None
        if answer is not None and said is not None:
            answer["content"] = said["content"]
        return StoredTranscript(
            row.exchange_id,
            _request(one),
            answer,
            list(one.reads),
            dict(one.target),
            one.upstream_request_sha256,
            one,
        )
    except (LookupError, ValueError, TypeError, zstandard.ZstdError) as exc:
        raise BrokenTranscript(f"its transcript cannot be read: {exc}") from exc


class BrokenTranscript(Exception):
    pass


def _request(one: Conversation) -> dict[str, Any]:
    if one.request is None:
        return {"raw": one.raw.text.decode("utf-8", "replace")} if one.raw else {}
    values = {
        name: parts.decode_json(held.text)
        if isinstance(held, Piece)
        else [parts.decode_json(piece.text) for piece in held]
        for name, held in one.request.fields.items()
    }
    return parts.put_together(
        parts.decode_json(one.request.envelope.text), values, one.request.marks
    )


def _conversation(row: Transcript) -> Conversation:
    """The pieces of a stored transcript, each named by the digest of what is there *now*."""
    manifest = unpack(frames.plain(bytes(row.manifest)))
    fields = {
        name: held if isinstance(held, int) else summed(held)
        for name, held in manifest.get("fields", {}).items()
    }
    texts = _texts(manifest, fields)
    one = Conversation(
        row.exchange_id,
        row.created,
        answer=manifest["answer"],
        target=manifest["target"],
        upstream_request_sha256=manifest["sha"],
    )
    if "raw" in manifest:
        one.raw = texts[manifest["raw"]]
    if "said" in manifest:
        one.said = texts[manifest["said"]]
    if "envelope" in manifest:
        named = {
            name: texts[held] if isinstance(held, int) else [texts[pk] for pk in held]
            for name, held in fields.items()
        }
        one.request = Parted(texts[manifest["envelope"]], named, manifest["marks"])
    one.failed = [
        FailedAttempt(number, upstream, model, status, texts[pk])
        for number, upstream, model, status, pk in manifest.get("failed", ())
    ]
    if row.stream is not None:
        one.reads = reads_in(bytes(row.stream), one.dictionary())
    return one


def named_by(manifest: Mapping[str, Any]) -> set[int]:
    """Ids of all parts that a manifest names."""
    ids = {manifest[name] for name in ("raw", "said", "envelope") if name in manifest}
    ids.update(each[-1] for each in manifest.get("failed", ()))
    for held in manifest.get("fields", {}).values():
        ids |= {held} if isinstance(held, int) else set(summed(held))
    return ids


def _texts(manifest: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[int, Piece]:
    found: dict[int, Piece] = {}
    for some in _slices(sorted(named_by(manifest))):
        for pk, packed in Part.objects.filter(pk__in=evened(some)).values_list("id", "data"):
            text = frames.plain(bytes(packed))
            found[pk] = Piece(hashlib.sha256(text).digest(), text)
    return found
