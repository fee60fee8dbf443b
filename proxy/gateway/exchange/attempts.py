"""The calls of upstreams for one request, and the response to the last call."""

import dataclasses
from typing import Any

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

from .attempt_record import AttemptRecord
from .upstream_bytes import StoredReads


class Attempts:
    """The upstream attempts of one request.

    The class has ``__slots__``, because thousands of instances exist at the same time.
    """

    __slots__ = (
        "body_digest",
        "first_content",
        "fold",
        "is_last_target",
        "late_usage",
        "message",
        "notes",
        "reads",
        "recorded_calls",
        "records",
        "stream",
        "target",
        "target_record",
        "upstream_request_id",
    )

    def __init__(self, started: float) -> None:
        self.records: list[AttemptRecord] = []
        self.target: Target | None = None  # the target of the last attempt
        self.target_record: dict[str, Any] = {}  # the same target, as stored in the ledger
        self.is_last_target = False  # whether no further target can be tried
        self.notes: list[Note] = []  # notes of the translation of the request
        # the session's record of earlier calls to the target; None: its calls are not recorded
        self.recorded_calls: RecordedCalls | None = None
        self.body_digest = ""  # SHA-256 of the request body sent to the upstream
        self.upstream_request_id = ""
        self.stream: Stream | None = None
        # usage that the upstream reported after the client's response ended
        self.late_usage: Usage | None = None
        # This builds the message for the transcript from the stream's events.
        self.fold = MessageFold()
        self.message: dict[str, Any] | None = None  # the whole message, if it is built already
        self.first_content: float | None = None
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
