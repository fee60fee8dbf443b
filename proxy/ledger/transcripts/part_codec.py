"""Compress and encrypt the stored data of transcripts: parts, manifests and raw streams.

Each datum is encrypted for its own address: a part for its digest, the others for the id of their
request.
"""

from collections.abc import Callable, Mapping
from typing import Any

from proxy.encryption.bodies import decrypt, encrypt

from . import zstd_dictionary
from .encoding import pack, unpack

Compress = Callable[[bytes], bytes]
Stored = bytes | memoryview
"""The value of a binary column; PostgreSQL returns a memoryview."""


def encode_part(compress: Compress, digest: bytes, text: bytes) -> bytes:
    """Return the stored data of a part; ``digest`` is its stored digest."""
    return encrypt(compress(text), b"part:" + digest)


def decode_part(digest: Stored, data: Stored) -> bytes:
    """Return the text of a part. Raises ``zstandard.ZstdError``, MissingBodyKey or DamagedBody."""
    return zstd_dictionary.decompress(decrypt(bytes(data), b"part:" + bytes(digest)))


def encode_manifest(compress: Compress, exchange_id: str, manifest: Mapping[str, Any]) -> bytes:
    return encrypt(compress(pack(manifest)), b"manifest:" + exchange_id.encode())


def decode_manifest(exchange_id: str, data: Stored) -> dict[str, Any]:
    """Return the manifest of a transcript.

    Raises as ``decode_part``, and ``msgspec.MsgspecError``.
    """
    content = decrypt(bytes(data), b"manifest:" + exchange_id.encode())
    manifest: dict[str, Any] = unpack(zstd_dictionary.decompress(content))
    return manifest


def encode_stream(exchange_id: str, compressed: bytes | None) -> bytes | None:
    return None if compressed is None else encrypt(compressed, b"stream:" + exchange_id.encode())


def decode_stream(exchange_id: str, data: Stored) -> bytes:
    """Return the compressed stream. Raises MissingBodyKey or DamagedBody."""
    return decrypt(bytes(data), b"stream:" + exchange_id.encode())
