"""The bodies of requests: their memory limit, gzip, and strict JSON.

Received bytes are counted when they arrive, and the memory of the decoded values is counted before
decoding. Above the limit, new requests are rejected (529), so that many large bodies cannot use up
the memory.

msgspec already rejects NaN, Infinity, 1e999, integers of thousands of digits, unpaired surrogates
and invalid UTF-8. It accepts duplicate keys and deep nesting, which this module rejects. (Of
duplicate keys, the last one wins, so a program in front of the gateway could check one value while
the gateway uses the other.) Decoded, a value of one byte of JSON takes up to 190 bytes, so
``count_values_limited`` counts the values first.
"""

import asyncio
import io
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from gc import get_referents, is_tracked
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from proxy.conf import conf
from proxy.json_value_limit import MAX_VALUES, count_values
from translator.errors import BadRequest

from .errors import HttpError, too_busy, too_large

Result = TypeVar("Result")

AT_ONCE_BYTES: Final = 64 * 1024
"""Work on a body of this size takes some milliseconds."""
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
MIB: Final = 2**20
MOST_INFLATION: Final = 100
"""The highest ratio of inflated to compressed size of a gzip body of more than 1 MiB.

Conversations have a ratio of 5 to 20."""
INFLATED_SLICE: Final = 64 * 1024
MAX_DEPTH: Final = 100
DEPTH_BYTES: Final = 16 * 1024
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class BodyMemory:
    """The number of bytes reserved for running requests.

    Only code on the event loop may change it.
    """

    def __init__(self) -> None:
        self.reserved = 0

    def change(self, before: int, now: int) -> int:
        """Replace a reservation of ``before`` bytes by one of ``now`` bytes; return ``now``.

        Raises HttpError (529) if the limit is exceeded. If no other request has a reservation, any
        size is accepted.
        """
        others = self.reserved - before
        if now > before and others and others + now > conf.max_bodies_bytes:
            raise too_busy("bodies")
        self.reserved = others + now
        return now


body_memory: Final = BodyMemory()


async def run_in_body_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Run ``work`` in the thread for large bodies, after the calls that were queued earlier.

    There is only one such thread: parallel calls would share the GIL, so they would not be faster,
    but they would need memory for all bodies at once.
    """
    call = copy_context().run
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, call, work, *arguments)


async def run_by_size(body: bytes, work: Callable[..., Result], *arguments: object) -> Result:
    """Run ``work``, which reads a whole body: at once, or in the body thread if it is large."""
    if len(body) <= AT_ONCE_BYTES:
        return work(*arguments)
    return await run_in_body_thread(work, *arguments)


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


def count_values_limited(body: bytes) -> int:
    """Return an upper bound of the number of JSON values in the body.

    Raises BadRequest if there are too many values: 400 if they are also nested too deeply, else
    413.
    """
    values = count_values(body)
    if values > MAX_VALUES:
        if depth_at_start(body) > MAX_DEPTH:
            _refuse_depth()
        raise BadRequest(
            "",
            f"the body has more than {MAX_VALUES} values (objects, arrays and their items)",
            status=413,
            error_type="request_too_large",
        )
    return values


def depth_at_start(body: bytes) -> int:
    """Return the nesting depth of the body's first 16 KiB, without decoding them.

    This takes at most 3 ms.
    """
    start = body[:DEPTH_BYTES].replace(b"\\\\", b"").replace(b'\\"', b"")
    depth = deepest = 0
    # If the text has no escapes, every second piece is inside a string.
    for outside in start.split(b'"')[::2]:
        for byte in outside:
            depth += (byte in b"{[") - (byte in b"}]")
            deepest = max(deepest, depth)
    return deepest


def decode_object(body: bytes) -> dict[str, Any]:
    """Decode a request body to a dict.

    Raises BadRequest (400) if it is not one valid JSON object.
    """
    try:
        value = _decode(body)
    except RecursionError:
        _refuse_depth()
    except UnicodeDecodeError as exc:
        raise BadRequest("", f"the body is not valid UTF-8 (byte {exc.start})") from None
    except msgspec.MsgspecError as exc:
        raise BadRequest("", f"the body is not valid JSON: {exc}") from None
    if type(value) is not dict:
        raise BadRequest("", "the body must be a JSON object")
    _check_depth(value)
    _check_duplicates(body, value)
    return value


def _check_depth(value: dict[str, Any]) -> None:
    """Raise BadRequest if the value is nested too deeply.

    The containers are visited level by level. CPython's garbage collector tracks a dict only if it
    may contain a container, so most dicts need no visit: 52 KB with 20 tools take 15 µs, with a
    loop over all children 60 µs. Untracked dicts can add one more level, so close to the limit
    ``_check_each_depth`` visits all children.
    """
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH - 1):
        level = list(filter(is_tracked, get_referents(*level)))
        if not level:
            return
    _check_each_depth(value)


def _check_each_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    _refuse_depth()


def _refuse_depth() -> NoReturn:
    raise BadRequest("", f"the body is nested deeper than {MAX_DEPTH} levels") from None


def _check_duplicates(body: bytes, value: dict[str, Any]) -> None:
    r"""Raise BadRequest for a duplicate key.

    The decoded value lacks the duplicate, so encoding it again gives at least two quotes fewer than
    ``body`` has. Most clients write JSON exactly as this encoder does, so comparing the bytes is
    enough (0.03 ms for 52 KB with 20 tools). Otherwise the quotes of both are counted (0.07 ms
    more). An inner quote written as ``\u0022`` makes that count wrong; such a body is decoded again
    with a check of each key (0.3 ms).
    """
    again = _encode(value)
    if again == body:
        return
    if body.count(b'"') != again.count(b'"') or b"\\u0022" in body:
        json.loads(body, object_pairs_hook=_reject_duplicates)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique:
            raise BadRequest("", f"the key {name[:100]!r} is written twice")
        unique[name] = value
    return unique
