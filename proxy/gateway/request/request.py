"""A running request, from authentication to its row in the ledger.

The open record is written before the first upstream attempt. The close record is written at the end
of the ``async with`` block: after the response was completed or failed, after the request was
rejected, or after the client disconnected.
"""

import asyncio
import contextlib
import logging
import re
import time
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from proxy.gateway.admission.budgets import PlannedRequest, Reservation
from proxy.gateway.admission.client_options import PLAIN, ClientOptions
from proxy.gateway.admission.rate_limits import Bucket, ConcurrencySlot
from proxy.gateway.admission.route_selection import Route
from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.error_log import log_failed_request, log_refusal
from proxy.gateway.http.errors import HttpError, stopped, to_http_error
from proxy.gateway.http.request_headers import RequestHeaders, printable
from proxy.gateway.snapshot.config_snapshot import Caller, directory
from proxy.gateway.snapshot.targets import Target
from proxy.gateway.web_search import worst_case_input
from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal.journal import DurabilityFuture
from proxy.ledger.journal.records import Chunk, CloseRecord
from proxy.ledger.recorder import Recorder, recorder
from proxy.ledger.usage.pricing import PriceList, cost_of
from proxy.ledger.usage.unreported_usage import fill_unreported
from proxy.live.running_requests import RUNNING, LiveRow
from proxy.metrics.definitions import WORKER_IN_FLIGHT
from translator.anthropic.token_estimate import tokens_of_characters
from translator.anthropic.usage import MAX_COUNT, Usage
from translator.dialect import Stream
from translator.errors import BadRequest
from translator.notes import Note
from translator.request.session_id import MAX_SESSION_ID, session_id_in

from .attempts import AttemptRecord, Attempts
from .client_response import ClientResponse
from .ledger_records import close_record, open_record, price_of, usage_record
from .tracing import Trace, tracing

log = logging.getLogger("proxy.gateway")

SESSION_HEADER: Final = b"x-claude-code-session-id"
SUMMARY_FIELDS: Final = (
    "stream", "max_tokens", "temperature", "top_p", "top_k", "speed", "inference_geo"
)  # fmt: skip
"""The request fields that stay in memory after translation, for the ledger row, the trace and the
live view."""
MAX_TAGS: Final = 16
MAX_TAG: Final = 200
TAG_NAME: Final = re.compile(r"[A-Za-z0-9_.:/=+@-]{1,64}")
"""The names of tags that Claude Code accepts for a billing group."""
MAX_OUTPUT_TOKENS: Final = 128_000
"""Assumed for a request without a valid limit: as many as a model can write in one response."""
LONG_STREAM: Final = Note("answer", "dropped", "the upstream's stream after its first 32 MiB")
LONG_ANSWER: Final = Note("answer", "dropped", "the answer's text after its first 16 Mi characters")
READ_TO_END: Final = "read_to_end"
READ_FOR_BUDGET: Final = Note(
    "answer", "dropped", "the client left; the upstream is read to the end for its hard budget"
)
READ_FOR_BILLING: Final = Note(
    "answer",
    "dropped",
    "the client left; the upstream is read to the end, since it bills all of it",
)
MAX_NOTES: Final = 200
"""The maximum number of notes of one request. It is limited, because each content block may cause a
note."""
BLOCK_STATES: Final = {
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "tool_use": "calling",
}
"""The state that the live view shows while a content block of this type is open."""
MOST_BYTES: Final = 2**20  # the maximum size of one stored rejected body
BYTES_A_MINUTE: Final = 4 * 2**20
"""The limit for all stored rejected bodies of one worker: at most 5.8 GB a day."""
NOT_STORED: Final = Note("body", "dropped", "the limit for stored rejected bodies is reached")

shared_room: Final = Bucket(BYTES_A_MINUTE, BYTES_A_MINUTE, time.monotonic())


@dataclass(slots=True, eq=False)  # slots, because thousands of instances exist at the same time
class Request:
    """One request to /v1/messages with a known gateway key."""

    recorder: ClassVar[Recorder] = recorder

    response: ClientResponse
    head: RequestHeaders
    caller: Caller

    # What the client sent
    body: bytes = b""
    rejected_body: bytes = b""  # the body as the client sent it, if it is invalid
    fields: dict[str, Any] = field(default_factory=dict)  # the decoded body
    fault: BadRequest | None = None
    """Why the request cannot be translated. An Anthropic upstream may accept it all the same."""
    size: int = 0  # of the body, in bytes
    model: str = ""  # the model name in the client's request
    session_id: str = field(init=False)
    """The id of the conversation; empty if the request has none."""
    input_estimate: int = 0  # the input tokens by ``estimate_tokens``
    options: ClientOptions = PLAIN  # set by headers and by the gateway key
    created: float = field(default_factory=time.time)

    # What admission determined
    prices: PriceList = field(default_factory=lambda: directory.snapshot.prices)
    """The prices when the request arrived. Later changes do not apply to the request."""
    route: Route | None = None
    slot: ConcurrencySlot | None = None
    reservation: Reservation | None = None
    """The reservation in the budgets that cover the request."""
    opening: DurabilityFuture | None = None
    """The pending journal write of the open record; None before it starts and after it ends."""
    accepted: bool = False  # whether the open record is on the disk

    attempts: Attempts = field(init=False)
    trace: Trace | None = field(init=False)

    # How the request ended
    outcome: str = ""
    """The outcome for the ledger. If it is empty, it is decided when the request ends."""
    detail: str = ""
    stopped_by: str = ""  # who stopped the request in the admin
    notes: list[Note] = field(default_factory=list)
    """Notes about the request from the gateway itself; the translator's notes are elsewhere."""
    closing: CloseRecord | None = None

    def __post_init__(self) -> None:
        self.session_id = self.head.text(SESSION_HEADER, MAX_SESSION_ID)
        self.trace = tracing.trace_for(self.head) if tracing.on else None
        self.attempts = Attempts(self.response.started)

    async def __aenter__(self) -> Self:
        RUNNING[self.head.request_id] = self
        WORKER_IN_FLIGHT.inc()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Send an error response if the request failed, then write the ledger row.

        The error is sent first, so that the client need not wait for the disk. Returns True if the
        exception is handled.
        """
        # first, so that no user can stop the request while its ledger row is written
        RUNNING.pop(self.head.request_id, None)
        WORKER_IN_FLIGHT.dec()
        if exc is None and self.response.cancel_reason is None:  # the response is complete
            self._close(None, None)
            return False
        self.response.deadlines.end()  # a deadline must not cancel the error response
        refusal = self.refusal_for(exc)
        try:
            if isinstance(exc, Exception):
                await self.response.send_error(exc)
            elif refusal is not None and not self.response.headers_sent:
                await self.response.send_error(refusal)
        finally:  # the row is written even if sending the error fails
            if self.opening is not None:  # the open record is not on the disk yet
                with contextlib.suppress(JournalUnavailable):
                    await self.wait_until_recorded()
            if self.accepted:
                self._close(refusal, exc)
            else:
                await self._record_refusal(refusal, exc)
        return isinstance(exc, Exception)

    def refusal_for(self, exc: BaseException | None) -> HttpError | None:
        """Return the error that ends the response; None if the client cannot receive one.

        ``exc``: the exception that ended the request; None or CancelledError: a cancellation.
        """
        if isinstance(exc, Exception):
            return to_http_error(exc)
        if self.response.cancel_reason is CancelReason.STOPPED:
            return stopped()
        if self.response.cancel_reason is not None:
            return None  # the client has disconnected or no longer reads
        return HttpError(  # the request was cancelled because the server shuts down
            529, "overloaded_error", "the gateway is shutting down", {"retry-after": "1"},
            outcome="drained", source="gateway",
        )  # fmt: skip

    def _close(self, refusal: HttpError | None, exc: BaseException | None) -> None:
        closing = self.closing = close_record(self, refusal)
        try:
            if closing.outcome != "completed":
                stream = self.attempts.stream
                log_failed_request(closing, stream.error if stream else None, exc)
            self.recorder.begin_close(closing, self.response.deadlines.loop)
            # This frees memory: the journal has the reads, but the record is referenced a second
            # longer.
            closing.reads.clear()
        finally:
            if self.reservation is not None:
                self.reservation.settle(closing)

    async def _record_refusal(self, refusal: HttpError | None, exc: BaseException | None) -> None:
        """Write the ledger row of a rejected request, with the body if that is invalid."""
        try:
            if refusal is None:
                return
            log_refusal(self.head.request_id, refusal, exc)
            body = self.body_to_store()
            closing = self.closing = close_record(self, refusal)
            await self.recorder.open(open_record(self, body, faulty=body is not None))
            self.recorder.begin_close(closing)
        except JournalUnavailable:
            log.warning("%s refused, and the ledger cannot be written", self.head.request_id)
        finally:
            if self.reservation is not None:
                self.reservation.settle(None)

    def body_to_store(self, room: Bucket = shared_room) -> bytes | None:
        """Return the rejected body if it is to be stored, as opaque bytes that are never parsed.

        Invalid requests are rejected before any rate limit applies, so their bodies have a limit of
        their own: a client that repeats one must not fill the disk. A note says if it is reached.
        """
        body = self.rejected_body
        if not body or not self.caller.team.store_full:
            return None
        room.refill(time.monotonic())
        if len(body) > min(MOST_BYTES, room.left):
            self.notes.append(NOT_STORED)
            return None
        room.left -= len(body)
        return body

    # What the client sent

    def set_body(
        self,
        body: bytes,
        fields: dict[str, Any],
        input_estimate: int,
        fault: BadRequest | None = None,
    ) -> None:
        self.body, self.fields, self.input_estimate = body, fields, input_estimate
        self.fault, self.size, self.model = fault, len(body), fields["model"]
        self.session_id = self.session_of(fields)

    def session_of(self, fields: dict[str, Any]) -> str:
        """Return the session of a request with this body; the header has precedence."""
        if self.session_id or "metadata" not in fields:
            return self.session_id
        return session_id_in(fields["metadata"])

    @property
    def max_tokens(self) -> int:
        """Return the limit of output tokens, for budgets.

        A request that the gateway could not check may have no valid limit. A larger limit than any
        model has is lowered, because a database cannot store its cost.
        """
        limit = self.fields.get("max_tokens")
        if not isinstance(limit, int | float) or limit < 0:
            return MAX_OUTPUT_TOKENS
        return int(min(limit, MAX_COUNT))

    @property
    def tags(self) -> dict[str, str]:
        """Return the field ``tags`` (beta ``request-tags-2026-08-21``), without invalid ones.

        Claude Code sends its billing group there.
        """
        sent = self.fields.get("tags")
        if not isinstance(sent, dict):
            return {}
        return {
            name: printable(value)
            for name, value in islice(sent.items(), MAX_TAGS)
            if TAG_NAME.fullmatch(name) and isinstance(value, str) and len(value) <= MAX_TAG
        }

    @property
    def streaming(self) -> bool:
        return self.fields.get("stream") is True

    def first_content_sent(self) -> None:
        """Record when the client received the first content.

        Release the request body, as no other target needs it any more.
        """
        if self.attempts.first_content is None:
            self.attempts.first_content = self.response.deadlines.now()
            if self.body:
                self.release_body()

    def release_body(self) -> None:
        """Release the large parts of the request, once no further target needs them."""
        # The upstream's request body contains the same data, and is about as large.
        self.response.reserve_memory(self.size)
        fields, self.body = self.fields, b""
        self.fields = {name: fields[name] for name in SUMMARY_FIELDS if name in fields}

    # Admission

    @property
    def route_name(self) -> str:
        return self.route.name if self.route is not None else ""

    @property
    def has_hard_budget(self) -> bool:
        """Whether a hard budget covers the request.

        Such a budget is charged all costs that may arise.
        """
        return self.reservation is not None and self.reservation.worst_case is not None

    def planned(self) -> PlannedRequest:
        """Return the data from which budgets compute the highest possible cost of the request."""
        return PlannedRequest(
            id=self.head.request_id,
            model=self.model,
            created=self.created,
            prices=self.prices,
            input_tokens=worst_case_input(
                {} if self.fault else self.fields, self.input_estimate, self.max_tokens
            ),
            max_tokens=self.max_tokens,
            dimensions={
                name: value
                for name in ("speed", "inference_geo")
                if isinstance(value := self.fields.get(name), str)
            },
        )

    async def accept(self, route: Route, slot: ConcurrencySlot) -> None:
        """Start to write the request's open record. The request is translated at the same time."""
        self.route, self.slot = route, slot
        self.attempts.set_target(route.targets[0], self.model)
        body = self.body if self.caller.team.store_full else None
        self.opening = await self.recorder.begin_open(
            open_record(self, body), self.response.deadlines.loop
        )

    async def wait_until_recorded(self) -> None:
        """Wait until the request's open record is on the disk. Raises JournalUnavailable.

        If the request is cancelled meanwhile, its record is withdrawn, except if the client can
        still receive an error: then the row must have that error, so ``__aexit__`` waits again.
        """
        opening = self.opening
        if opening is None:
            return
        try:
            await asyncio.shield(opening.future)
        except asyncio.CancelledError:
            if self.refusal_for(None) is None:
                self.opening = None
                opening.withdraw()
            raise
        except JournalUnavailable:
            self.opening = None
            raise
        self.opening = None
        self.accepted = True

    # Calls of upstreams

    def attempt_started(
        self, record: AttemptRecord, target: Target, stream: Stream, *, continues: bool = False
    ) -> None:
        """Begin an upstream call.

        The output of an earlier call is discarded, unless this call ``continues`` its message.
        """
        if self.attempts.records:
            self.checkpoint(broken=not continues)
            self.response.extra_headers = [*self.slot.headers] if self.slot is not None else []
        self.attempts.set_target(target, self.model)
        self.attempts.start(record, stream, continues=continues)

    def charge_attempt(self) -> None:
        """Before the next attempt, store the possible cost of the failed one, for a hard budget."""
        if not (self.has_hard_budget and self.attempts.records):
            return
        attempt, usage = self.attempts.records[-1], usage_record(self.usage())
        cost = cost_of(usage, price_of(self, attempt.upstream, attempt.model, usage))
        if cost is not None:
            usage = {name: value for name, value in usage.items() if value is not None}
            attempt.charge = {"usage": usage, "cost_nanousd": cost.total}

    def should_drain_upstream(self) -> bool:
        """Return whether to read the upstream to its end after the client has disconnected.

        True if the upstream bills the whole response anyway, or if a hard budget must be charged
        the response's cost.
        """
        target = self.attempts.target
        if not self.attempts.records or target is None:
            return False
        bills_all = target.server.drains_on_disconnect
        if not (bills_all or (self.has_hard_budget and self.attempts.may_be_billed)):
            return False
        self.outcome, self.detail = "client_gone", READ_TO_END
        self.notes.append(READ_FOR_BILLING if bills_all else READ_FOR_BUDGET)
        return True

    def usage(self) -> Usage:
        """Return the usage that the upstream reported, else an estimate.

        If a hard budget covers the request, unreported values are the worst case that the upstream
        may bill.
        """
        usage, reservation = self.attempts.usage(self.input_estimate), self.reservation
        if reservation is None or reservation.worst_case is None or not self.attempts.may_be_billed:
            return usage
        return fill_unreported(usage, reservation.worst_case, answered=self.attempts.has_content)

    def store_upstream_bytes(self, raw: bytes, now: float) -> None:
        """Store bytes from the upstream for the transcript. ``now``: the event loop's time."""
        if self.caller.team.store_full and self.attempts.reads.add(raw, now):
            self.checkpoint()

    def tick(self, now: float) -> None:
        if self.attempts.reads.is_due(now):
            self.checkpoint()

    def checkpoint(self, *, broken: bool = False) -> None:
        """Hand the unsaved reads of the upstream's response to the journal, without waiting."""
        attempts = self.attempts
        attempts.reads.saved_at = self.response.deadlines.now()
        if attempts.stream is not None and attempts.stream.error is not None:
            broken = True
        if reads := self.take_unsaved_reads(broken=broken):
            number = len(attempts.records) - 1
            self.recorder.chunk(
                Chunk(
                    id=self.head.request_id,
                    reads=reads,
                    attempt=number,
                    target=attempts.target_record if number else {},
                    status=attempts.records[-1].status or 200,
                )
            )

    def take_unsaved_reads(self, *, broken: bool = False) -> list[tuple[float, bytes]]:
        """Return and remove the upstream reads since the last checkpoint, for a journal record."""
        return [] if self.attempts.target is None else self.attempts.reads.take(broken=broken)

    def all_notes(self) -> list[Note]:
        """Return all notes of the request, including those about truncation of the transcript."""
        attempts = self.attempts
        notes = [*self.head.client_info.notes, *self.notes, *attempts.notes]
        if attempts.stream is not None:
            notes += attempts.stream.notes
        if attempts.reads.is_full:
            notes.append(LONG_STREAM)
        if attempts.fold.is_truncated:
            notes.append(LONG_ANSWER)
        if len(notes) > MAX_NOTES:
            more = Note("notes", "dropped", f"{len(notes) - MAX_NOTES} more of them")
            notes = [*notes[:MAX_NOTES], more]
        return notes

    # The live view

    def stop_by(self, who: str) -> None:
        def stop() -> None:
            if self.stopped_by or RUNNING.get(self.head.request_id) is not self:
                return
            self.stopped_by = who
            self.notes.append(Note("answer", "dropped", f"stopped by {who}"))
            self.response.stop(CancelReason.STOPPED)

        self.response.deadlines.loop.call_soon_threadsafe(stop)

    @property
    def live_state(self) -> str:
        """The request's state, a key of ``running_requests.STATES``."""
        if self.stopped_by:
            return "stopping"
        if self.attempts.records:
            kind = self.attempts.fold.last_block_type
            return BLOCK_STATES.get(kind, "answering") if kind else "waiting"
        return "admitted" if self.model else "arriving"

    def live_row(self) -> LiveRow:
        """Return the request's row.

        Any thread may call this, so the values may be from slightly different times.
        """
        head, caller, attempts = self.head, self.caller, self.attempts
        began, now = self.response.started, self.response.deadlines.now()
        stream, target, first = attempts.stream, attempts.target, attempts.first_content
        usage = stream.usage if stream is not None else Usage()
        has_final_usage = stream is not None and stream.finished and usage.output is not None
        output_estimate = tokens_of_characters(attempts.fold.characters)
        asked = {  # dimensions of prices
            name: value[:40]
            for name in ("speed", "inference_geo")
            if isinstance(value := self.fields.get(name), str)
        }
        return LiveRow(
            id=head.request_id,
            age_ms=round((now - began) * 1000, 1),
            team=caller.team.name,
            team_id=caller.team.ledger_id,
            key_id=caller.key_id,
            key=caller.key_name,
            user=caller.user,
            user_id=caller.person_id,
            client=" ".join(head.client).strip(),
            session=self.session_id,
            agent=head.text(b"x-claude-code-agent-id", 200),
            model=self.model[:200],
            upstream=target.server.name if target is not None else "",
            upstream_model=target.model_for(self.model)[:200] if target is not None else "",
            stream=self.streaming,
            speed=usage.speed or asked.get("speed", ""),
            inference_geo=usage.inference_geo or asked.get("inference_geo", ""),
            state=self.live_state,
            input_tokens=usage.input if usage.input is not None else self.input_estimate,
            output_tokens=(usage.output or 0) if has_final_usage else output_estimate,
            estimated=not has_final_usage,
            attempts=len(attempts.records),
            first_ms=None if first is None else round((first - began) * 1000, 1),
        )
