"""The bytes that an upstream sent, buffered until they are written to the journal."""

from array import array
from typing import Final

from proxy.gateway.http.secret_redaction import redact_error_body

CHECKPOINT_S: Final = 1.0  # if the process dies, at most this many seconds of a response are lost
CHECKPOINT_BYTES: Final = 64 * 1024
MAX_READ_BYTES: Final = 32 * 2**20
"""The maximum of an upstream's bytes in a transcript: 160,000 tokens of 200 bytes. The rest is
relayed to the client but not stored, so that an endless response cannot fill the journal."""


class StoredReads:
    """The reads of one upstream attempt since the last checkpoint. Times are the event loop's."""

    # Times and bytes are in two lists, because a list of tuples would need 72 bytes more for each
    # read.
    __slots__ = ("_pieces", "_times_ms", "saved_at", "started", "stored_bytes", "waiting_bytes")

    def __init__(self, started: float) -> None:
        self.started = started
        self.saved_at = started  # time of the last checkpoint
        self.stored_bytes = 0  # this includes the bytes that ``take`` has returned
        self.waiting_bytes = 0
        self._pieces: list[bytes] = []
        self._times_ms = array("d")  # milliseconds since ``started``

    @property
    def is_full(self) -> bool:
        """Whether the maximum is reached, so that later reads are not stored."""
        return self.stored_bytes >= MAX_READ_BYTES

    def add(self, raw: bytes, now: float) -> bool:
        """Store a read. Return whether a checkpoint is due because of the buffered bytes."""
        if self.stored_bytes >= MAX_READ_BYTES:  # ``is_full``, without a call for each read
            return False
        size = len(raw)
        self.stored_bytes += size
        self.waiting_bytes += size
        self._pieces.append(raw)
        self._times_ms.append((now - self.started) * 1000)
        return self.waiting_bytes >= CHECKPOINT_BYTES

    def is_due(self, now: float) -> bool:
        """Return whether a checkpoint is due because of the time since the last one."""
        return bool(self._pieces) and now - self.saved_at >= CHECKPOINT_S

    def take(self, *, broken: bool) -> list[tuple[float, bytes]]:
        """Return and remove the buffered reads: pairs of milliseconds since ``started`` and bytes.

        ``broken``: the response failed, so its last read may contain an error, in which credentials
        are masked.
        """
        reads = [*zip(self._times_ms, self._pieces, strict=True)]
        self._pieces, self._times_ms, self.waiting_bytes = [], array("d"), 0
        return redact_error_body(reads) if broken and reads else reads
