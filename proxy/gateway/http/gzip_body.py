"""Decompress request bodies with ``content-encoding: gzip``, within limits of size and ratio."""

import io
import zlib
from typing import Final

from .errors import HttpError, too_large

MIB: Final = 2**20
MOST_INFLATION: Final = 100
"""The highest ratio of inflated to compressed size of a gzip body of more than 1 MiB.

Conversations have a ratio of 5 to 20."""
INFLATED_SLICE: Final = 64 * 1024


def inflation_limit(body: bytes, limit: int) -> int:
    """Return how many bytes a gzip ``body`` may inflate to."""
    return min(limit, max(MIB, MOST_INFLATION * len(body)))


def gunzip_limited(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress a body with ``content-encoding: gzip``, within ``limit`` bytes.

    It may not inflate to more than ``inflation_limit`` either, and must be one gzip member
    without trailing bytes. Raises HttpError (400, 413 or 415).
    """
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise HttpError(
            415,
            "invalid_request_error",
            f"content-encoding {encoding[:40]!r} is not supported; send gzip or none",
            error_code="unsupported_request_body_encoding",
        )
    max_size = inflation_limit(body, limit)
    decompressor, plain, read = zlib.decompressobj(wbits=31), io.BytesIO(), 0
    # Decompress in slices, because zlib copies all bytes after the member.
    with memoryview(body) as compressed:
        try:
            while read < len(compressed) and not decompressor.eof and plain.tell() <= max_size:
                piece = compressed[read : read + INFLATED_SLICE]
                plain.write(decompressor.decompress(piece, max_size + 1 - plain.tell()))
                read += len(piece) - len(decompressor.unused_data)
        except zlib.error:
            raise _bad_gzip("the body is not valid gzip") from None
    if plain.tell() > max_size:
        raise too_large(limit) if max_size == limit else inflated_too_much()
    if not decompressor.eof:
        raise _bad_gzip("the body is not valid gzip: it ends too early")
    if read < len(body):
        raise _bad_gzip("the body is not valid gzip: there is more behind its end")
    return plain.getvalue()


def inflated_too_much() -> HttpError:
    return HttpError(
        413,
        "request_too_large",
        f"the gzip body inflates to more than {MOST_INFLATION} times its size; send it unpacked",
    )


def _bad_gzip(message: str) -> HttpError:
    return HttpError(
        400, "invalid_request_error", message, error_code="invalid_request_body_encoding"
    )
