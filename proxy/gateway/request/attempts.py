"""The calls of upstreams for one request, and the response to the last call."""

import dataclasses
from array import array
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from proxy.gateway.http.secret_redaction import redact_error_body
from proxy.gateway.snapshot.targets import Target
from translator.anthropic.token_estimate import content_tokens
from translator.anthropic.usage import (
    Usage,
    billed_usage,
    has_doubtful_counts,
    without_doubtful_counts,
)
from translator.dialect import RecordedCalls, Stream
from translator.message_stream.events_to_message import MessageFold
from translator.notes import Note

CHECKPOINT_S: Final = 1.0  # if the process dies, at most this many seconds of a response are lost
CHECKPOINT_BYTES: Final = 64 * 1024
MAX_READ_BYTES: Final = 32 * 2**20
"""The maximum of an upstream's bytes in a transcript: 160,000 tokens of 200 bytes. The rest is
relayed to the client but not stored, so that an endless response cannot fill the journal."""


@dataclass(slots=True)
class AttemptRecord:
    """One call of an upstream, as stored in the ledger."""

    upstream: str
    model: str
    at: float  # start of the call, on the event loop's clock
    reused: bool = False  # whether the connection had been used for an earlier request
    status: int | None = None
    error: str = ""
    sent: bool = False  # whether the upstream may have received the request
    refused: bool = False  # whether the upstream returned an error, so that it generated nothing
    charge: Mapping[str, Any] | None = None
    """The ``usage`` and ``cost_nanousd`` of a failed attempt that are charged to a hard budget."""

    @property
    def may_be_billed(self) -> bool:
        return self.sent and not self.refused

    def as_record(self, now: float) -> dict[str, Any]:
        record = {
            "upstream": self.upstream,
            "model": self.model,
            "status": self.status,
            "error": self.error,
            # Rounds to 0.1 ms; ``round`` would take 1 µs.
            "ms": int((now - self.at) * 10_000 + 0.5) / 10,
        }
        return record if self.charge is None else {**record, **self.charge}


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


@dataclass(slots=True, eq=False)
class Attempts:
    """The upstream attempts of one request."""

    started: InitVar[float]
    records: list[AttemptRecord] = field(default_factory=list)
    target: Target | None = None  # the target of the last attempt
    # the same target, as stored in the ledger
    target_record: dict[str, Any] = field(default_factory=dict)
    is_last_target: bool = False  # whether no further target can be tried
    notes: list[Note] = field(default_factory=list)  # notes of the translation of the request
    # the session's record of earlier calls to the target; None: its calls are not recorded
    recorded_calls: RecordedCalls | None = None
    body_digest: str = ""  # SHA-256 of the request body sent to the upstream
    upstream_request_id: str = ""
    stream: Stream | None = None
    # usage that the upstream reported after the client's response ended
    late_usage: Usage | None = None
    # This builds the message for the transcript from the stream's events.
    fold: MessageFold = field(default_factory=MessageFold)
    message: dict[str, Any] | None = None  # the whole message, if it is built already
    first_content: float | None = None
    reads: StoredReads = field(init=False)

    def __post_init__(self, started: float) -> None:
        self.reads = StoredReads(started)

    def set_target(self, target: Target, model: str) -> None:
        """Set the target of the next attempt. ``model``: the model name in the client's request."""
        if target is not self.target:
            self.target, self.target_record = target, target.as_record(model)

    def start(self, record: AttemptRecord, stream: Stream, *, continues: bool = False) -> None:
        """Begin a call. It discards the output of an earlier call, unless it continues that."""
        if self.records:
            self.upstream_request_id = ""
            if not continues:
                self.fold, self.late_usage = MessageFold(), None
        self.records.append(record)
        self.stream = stream
        self.reads = StoredReads(record.at)

    @property
    def may_be_billed(self) -> bool:
        """Whether the upstream may bill the last attempt."""
        return bool(self.records) and self.records[-1].may_be_billed

    def response_message(self) -> dict[str, Any] | None:
        """Return the response message so far; None if it has not started."""
        return self.message or self.fold.message or None

    def usage(self, input_estimate: int) -> Usage:
        """Return the usage that the upstream reported, else an estimate.

        Without any output there is no estimate, because the upstream may have billed nothing.
        """
        if self.stream is None:
            return Usage()
        usage = billed_usage(self.late_usage or self.stream.usage)
        is_doubtful = has_doubtful_counts(usage, self.fold.characters)
        if (usage.source != "missing" and not is_doubtful) or not self.has_content:
            return usage
        output = content_tokens((self.response_message() or {})["content"])
        if not is_doubtful:
            return Usage(
                input=input_estimate,
                output=output,
                web_searches=usage.web_searches,
                source="estimated",
            )
        usage = without_doubtful_counts(usage, self.fold.characters)
        return dataclasses.replace(
            usage,
            input=input_estimate if usage.input is None else usage.input,
            output=output if usage.output is None else usage.output,
            source="estimated",
        )

    @property
    def has_content(self) -> bool:
        return bool((self.response_message() or {}).get("content"))
