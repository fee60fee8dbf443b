"""Segment files of a journal: frames with checksums that are appended, synced and read again.

A segment starts with a header: magic bytes and the id of the process that wrote the file. Each
frame contains one record. A reader verifies the checksum of every frame, and after damaged bytes it
searches for the next valid frame.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import zstandard

from proxy.encryption.bodies import decrypt, encrypt

from .records import CHUNK

HEADER: Final = Struct("<4s8s")  # magic bytes, id of the writer
HEADER_MAGIC: Final = b"BRJ1"
FRAME: Final = Struct("<4sII")  # magic bytes, length of the payload, its CRC-32
FRAME_MAGIC: Final = b"\xf7REC"
META: Final = Struct("<QdBBH")
"""The start of a payload: frame number, Unix seconds, kind, 1 if compressed, request id length."""
SUFFIX: Final = ".segment"
BLOCK_BYTES: Final = 2**20
HEAD_BYTES: Final = 4096  # size of the first read of a frame; enough for most records
COMPRESS_FROM_BYTES: Final = 4_096
OPEN_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_DSYNC
LEVEL: Final = -1  # zstd level: 46 KB of an SSE stream become 2.9 KB in 26 µs


class Frame(NamedTuple):
    """The position and metadata of one record in its segment."""

    offset: int
    end: int
    number: int
    at: float  # Unix seconds
    kind: int
    id: str  # id of the request


class Damage(NamedTuple):
    """Bytes that are not a valid frame. ``torn`` is true for the end of an incomplete write."""

    offset: int
    end: int
    torn: bool


class _Compressor(threading.local):
    """A zstd compressor for each thread; creating one costs a fifth of compressing a body."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=LEVEL).compress


_compressor: Final = _Compressor()


def compress(body: bytes) -> tuple[bytes, bool]:
    """Return the body of a frame and whether it is compressed: one of under 4 KB is not."""
    if len(body) < COMPRESS_FROM_BYTES:
        return body, False
    return _compressor.compress(body), True


def encode_frame(
    number: int, at: float, kind: int, request_id: str, body: bytes, *, compressed: bool = False
) -> bytes:
    """Return the frame of one record; ``compress`` returns ``body`` and ``compressed``.

    With a body key, the body is encrypted; the number, the time and the request id are not.
    """
    name = request_id.encode("utf-8", "backslashreplace")
    body = encrypt(body, name)
    meta = META.pack(number, at, kind, compressed, len(name)) + name
    head = FRAME.pack(FRAME_MAGIC, len(meta) + len(body), crc32(body, crc32(meta)))
    return b"".join((head, meta, body))


def read_frames(file: int, start: int, end: int) -> Iterator[Frame | Damage]:
    """Yield, in order, the frames from offset ``start`` to ``end`` and any damaged byte ranges."""
    window = _Window(file, end)
    offset = start
    while offset < end:
        if (frame := _frame_at(window, offset)) is not None:
            yield frame
            offset = frame.end
            continue
        following = _next_frame(window, offset + 1)
        if following is None:
            yield Damage(offset, end, torn=_is_torn(window, offset))
            return
        yield Damage(offset, following, torn=False)
        offset = following


def read_frame(file: int, offset: int) -> bytes:
    """Return the bytes of the frame at ``offset``."""
    data = os.pread(file, HEAD_BYTES, offset)
    _, length, _ = FRAME.unpack_from(data)
    size = FRAME.size + length
    if size > len(data):
        data += os.pread(file, size - len(data), offset + len(data))
    return data[:size]


def frames_in(path: Path) -> list[bytes]:
    """Return the valid frames of a file without a header, such as one in quarantine."""
    with path.open("rb") as file:
        found = read_frames(file.fileno(), 0, path.stat().st_size)
        return [read_frame(file.fileno(), one.offset) for one in found if isinstance(one, Frame)]


def body_of(frame: bytes) -> bytes:
    """Return the encoded record in a frame, decrypted and decompressed if necessary."""
    _, _, _, compressed, id_length = META.unpack_from(frame, FRAME.size)
    start = FRAME.size + META.size
    body = frame[start + id_length :]
    with contextlib.suppress(ValueError):  # decoding the record raises the same error later
        body = decrypt(body, frame[start : start + id_length])
    if compressed:
        # If this fails, decoding the record fails later.
        with contextlib.suppress(zstandard.ZstdError):
            body = zstandard.decompress(body)
    return body


def erased(frame: bytes) -> bytes:
    """Return a frame of the same length and request id without a record.

    It is a ``CHUNK``: the reader ignores chunks of requests that are not open.
    """
    number, at, _, _, id_length = META.unpack_from(frame, FRAME.size)
    name = frame[FRAME.size + META.size :][:id_length]
    meta = META.pack(number, at, CHUNK, 0, id_length) + name
    body = bytes(len(frame) - FRAME.size - len(meta))
    return FRAME.pack(FRAME_MAGIC, len(meta) + len(body), crc32(body, crc32(meta))) + meta + body


class _Window:
    """Bytes of a file, read in large blocks."""

    def __init__(self, file: int, end: int) -> None:
        self.end = end
        self._file = file
        self._start, self._block = 0, b""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``; fewer only at the end of the window."""
        size = min(size, self.end - offset)
        at = offset - self._start
        if at < 0 or at + size > len(self._block):
            length = min(max(size, BLOCK_BYTES), self.end - offset)
            self._start, self._block, at = offset, os.pread(self._file, length, offset), 0
        return self._block[at : at + size]


def _frame_at(window: _Window, offset: int) -> Frame | None:
    head = window.read(offset, FRAME.size)
    if len(head) < FRAME.size or not head.startswith(FRAME_MAGIC):
        return None
    _, length, checksum = FRAME.unpack(head)
    end = offset + FRAME.size + length
    if length < META.size or end > window.end:
        return None
    payload = window.read(offset + FRAME.size, length)
    if crc32(payload) != checksum:
        return None
    number, at, kind, _, id_length = META.unpack_from(payload)
    name = payload[META.size : META.size + id_length].decode("utf-8", "replace")
    return Frame(offset, end, number, at, kind, name)


def _next_frame(window: _Window, offset: int) -> int | None:
    """Return the offset of the next valid frame at or after ``offset``, if there is one."""
    while window.end - offset >= len(FRAME_MAGIC):
        block = window.read(offset, BLOCK_BYTES)
        at = block.find(FRAME_MAGIC)
        while at >= 0:
            if _frame_at(window, offset + at) is not None:
                return offset + at
            at = block.find(FRAME_MAGIC, at + 1)
        # Blocks overlap, because the magic bytes may be at the border of two blocks.
        offset += len(block) - len(FRAME_MAGIC) + 1
    return None


def _is_torn(window: _Window, offset: int) -> bool:
    """Whether the bytes from ``offset`` to the end are an incomplete frame, or only zeros."""
    rest = window.read(offset, window.end - offset)
    if not rest.strip(b"\0"):
        return True
    head = rest[: len(FRAME_MAGIC)]
    if not FRAME_MAGIC.startswith(head):
        return False
    return len(rest) < FRAME.size or len(rest) < FRAME.size + FRAME.unpack_from(rest)[1]


class Segment:
    """A segment file that this process appends to. ``synced``: the length that is durable.

    The file is open with O_DSYNC: a write returns when its bytes are on the disk. So a write and an
    fdatasync are one system call, and the thread waits for the interpreter lock once, not twice.
    """

    def __init__(self, directory: Path, number: int, writer: bytes) -> None:
        """Create the file durably. Raises OSError, after deleting the new file."""
        self.number = number
        self.path = path_of(directory, number)
        self._file = os.open(self.path, OPEN_FLAGS, 0o600)
        self.size = self.synced = 0
        self.opened = time.monotonic()
        try:
            self.append([HEADER.pack(HEADER_MAGIC, writer)])
            sync_directory(directory)
        except OSError:
            self.abandon()
            raise

    @property
    def is_empty(self) -> bool:
        return self.synced <= HEADER.size

    def append(self, frames: Sequence[bytes]) -> None:
        """Return when all frames are on the disk. Raises OSError."""
        data = memoryview(b"".join(frames))
        while data:
            written = os.write(self._file, data)
            self.size += written
            data = data[written:]
        self.synced = self.size

    def close(self) -> None:
        os.close(self._file)
        if self.is_empty:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def abandon(self) -> None:
        """Truncate the file to its synced length and close it.

        After a failed write the file gets no more frames, because the kernel may have marked
        pages as clean that were never written to the disk.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self.synced)
        self.close()


def path_of(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}{SUFFIX}"


def numbers_in(directory: Path) -> list[int]:
    """Return the numbers of the segment files in a directory, oldest first. Raises OSError."""
    stems = (name[: -len(SUFFIX)] for name in os.listdir(directory) if name.endswith(SUFFIX))  # noqa: PTH208 -- unlike Path.glob it raises
    return sorted(int(stem) for stem in stems if stem.isdigit())


def next_number(directory: Path) -> int:
    return max(numbers_in(directory), default=0) + 1


def sync_directory(directory: Path) -> None:
    """Sync the directory, so that its entries for new files are durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
