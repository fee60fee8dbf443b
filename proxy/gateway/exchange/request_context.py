"""The state of a running request, and its records in the ledger.

The open record is written before the first upstream attempt. The close record is written at the end
of the ``async with`` block: after the response was completed or failed, after the request was
rejected, or after the client disconnected.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Final, Self

from proxy.gateway.admission.budgets import PlannedRequest, Reservation
from proxy.gateway.admission.rate_limits import ConcurrencySlot
from proxy.gateway.admission.route_selection import Route
from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.error_log import log_failed_request, log_refusal
from proxy.gateway.http.errors import HttpError, stopped, to_http_error
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.snapshot.config_snapshot import Caller, directory
from proxy.gateway.snapshot.targets import Target
from proxy.gateway.web_search.search_endpoint import worst_case_input
from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal.journal import DurabilityFuture
from proxy.ledger.journal.records import Chunk, CloseRecord
from proxy.ledger.recorder import Recorder, recorder
from proxy.ledger.usage.pricing import PriceList, cost_of
from proxy.ledger.usage.unreported_usage import fill_unreported
from proxy.live.running_requests import RUNNING, LiveRow
from proxy.metrics.definitions import WORKER_IN_FLIGHT
from translator.anthropic.usage import Usage
from translator.dialect import Stream
from translator.notes import Note

from .attempt_record import AttemptRecord
from .attempts import Attempts
from .client_request import ClientRequest
from .client_response import ClientResponse
from .ledger_records import close_record, open_record, price_of, usage_record
from .live_row import build_live_row
from .rejected_bodies import body_to_store
from .tracing import tracing

log = logging.getLogger("proxy.gateway")

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


@dataclass(slots=True)
class Admission:
    """What admission determined for one request, such as its route and budget reservation."""

    prices: PriceList
    """The prices when the request arrived. Later changes do not apply to the request."""
    route_name: str = ""
    slot: ConcurrencySlot | None = None
    reservation: Reservation | None = None
    """The reservation in the budgets that cover the request."""
    open_record: DurabilityFuture | None = None
    """The pending journal write of the request's open record; None before it starts and after it
    ends."""
    accepted: bool = False
    """Whether the request's open record is on the disk."""

    @property
    def has_hard_budget(self) -> bool:
        """Whether a hard budget covers the request.

        Such a budget is charged all costs that may arise.
        """
        return self.reservation is not None and self.reservation.worst_case is not None


@dataclass(slots=True)
class Ending:
    """How the request ended."""

    outcome: str = ""
    """The outcome for the ledger. If it is empty, it is decided when the request ends."""
    detail: str = ""
    stopped_by: str = ""
    """The name of the user who stopped the request in the admin."""
    notes: list[Note] = field(default_factory=list)
    """Notes about the request from the gateway itself; the translator's notes are elsewhere."""
    record: CloseRecord | None = None


class RequestContext:
    """One request with a known gateway key, from authentication to its row in the ledger."""

    __slots__ = (
        "admission",
        "attempts",
        "caller",
        "ending",
        "headers",
        "request",
        "response",
        "trace",
    )
    recorder: ClassVar[Recorder] = recorder

    def __init__(self, response: ClientResponse, headers: RequestHeaders, caller: Caller) -> None:
        self.response = response
        self.headers = headers
        self.caller = caller
        self.trace = tracing.trace_for(headers) if tracing.on else None
        self.request = ClientRequest(headers)
        self.admission = Admission(directory.snapshot.prices)
        self.attempts = Attempts(response.started)
        self.ending = Ending()

    async def __aenter__(self) -> Self:
        RUNNING[self.headers.request_id] = self
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
        RUNNING.pop(self.headers.request_id, None)
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
            await self._record_ending(refusal, exc)
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

    async def _record_ending(self, refusal: HttpError | None, exc: BaseException | None) -> None:
        # the request failed before its open record was on the disk
        if self.admission.open_record is not None:
            with contextlib.suppress(JournalUnavailable):
                await self.wait_until_recorded()
        if self.admission.accepted:
            self._close(refusal, exc)
            return
        try:
            if refusal is not None:
                log_refusal(self.headers.request_id, refusal, exc)
                await self._record_refusal(refusal)
        finally:
            if self.admission.reservation is not None:
                self.admission.reservation.settle(None)

    def _close(self, refusal: HttpError | None, exc: BaseException | None) -> None:
        closing = self.ending.record = close_record(self, refusal)
        try:
            if closing.outcome != "completed":
                log_failed_request(
                    closing, self.attempts.stream.error if self.attempts.stream else None, exc
                )
            self.recorder.begin_close(closing, self.response.deadlines.loop)
            # This frees memory: the journal has the reads, but the record is referenced a second
            # longer.
            closing.reads.clear()
        finally:
            if self.admission.reservation is not None:
                self.admission.reservation.settle(closing)

    def live_row(self) -> LiveRow:
        return build_live_row(self)

    def stop_by(self, who: str) -> None:
        self.response.deadlines.loop.call_soon_threadsafe(self._stop_by, who)

    def _stop_by(self, who: str) -> None:
        if self.ending.stopped_by or RUNNING.get(self.headers.request_id) is not self:
            return
        self.ending.stopped_by = who
        self.ending.notes.append(Note("answer", "dropped", f"stopped by {who}"))
        self.response.stop(CancelReason.STOPPED)

    def should_drain_upstream(self) -> bool:
        """Return whether to read the upstream to its end after the client has disconnected.

        True if the upstream bills the whole response anyway, or if a hard budget must be charged
        the response's cost.
        """
        target = self.attempts.target
        if not self.attempts.records or target is None:
            return False
        for_budget = self.admission.has_hard_budget and self.attempts.may_be_billed
        bills_all = target.server.drains_on_disconnect
        if not (bills_all or for_budget):
            return False
        self.ending.outcome, self.ending.detail = "client_gone", READ_TO_END
        self.ending.notes.append(READ_FOR_BILLING if bills_all else READ_FOR_BUDGET)
        return True

    def charge_attempt(self) -> None:
        """Before the next attempt, store the possible cost of the failed one, for a hard budget."""
        if not (self.admission.has_hard_budget and self.attempts.records):
            return
        attempt, usage = self.attempts.records[-1], usage_record(self.usage())
        cost = cost_of(usage, price_of(self, attempt.upstream, attempt.model, usage))
        if cost is not None:
            usage = {name: value for name, value in usage.items() if value is not None}
            attempt.charge = {"usage": usage, "cost_nanousd": cost.total}

    def planned(self) -> PlannedRequest:
        """Return the data from which budgets compute the highest possible cost of the request."""
        request = self.request
        return PlannedRequest(
            id=self.headers.request_id,
            model=request.model,
            created=request.created,
            prices=self.admission.prices,
            input_tokens=worst_case_input(
                {} if request.fault else request.fields, request.input_estimate, request.max_tokens
            ),
            max_tokens=request.max_tokens,
            dimensions={
                name: value
                for name in ("speed", "inference_geo")
                if isinstance(value := request.fields.get(name), str)
            },
        )

    async def accept(self, route: Route, slot: ConcurrencySlot) -> None:
        """Start to write the request's open record. The request is translated at the same time."""
        self.admission.slot = slot
        self.admission.route_name = route.name
        self.attempts.set_target(route.targets[0], self.request.model)
        body = self.request.body if self.caller.team.store_full else None
        self.admission.open_record = await self.recorder.begin_open(
            open_record(self, body), self.response.deadlines.loop
        )

    async def wait_until_recorded(self) -> None:
        """Wait until the request's open record is on the disk. Raises JournalUnavailable.

        If the request is cancelled meanwhile, its record is withdrawn, except if the client can
        still receive an error: then the row must have that error, so ``__aexit__`` waits again.
        """
        future = self.admission.open_record
        if future is None:
            return
        try:
            await asyncio.shield(future.future)
        except asyncio.CancelledError:
            if self.refusal_for(None) is None:
                self.admission.open_record = None
                future.withdraw()
            raise
        except JournalUnavailable:
            self.admission.open_record = None
            raise
        self.admission.open_record = None
        self.admission.accepted = True

    def attempt_started(
        self, record: AttemptRecord, target: Target, stream: Stream, *, continues: bool = False
    ) -> None:
        """Begin an upstream call.

        The output of an earlier call is discarded, unless this call ``continues`` its message.
        """
        if self.attempts.records:
            self.checkpoint(broken=not continues)
            slot = self.admission.slot
            self.response.extra_headers = [*slot.headers] if slot is not None else []
        self.attempts.set_target(target, self.request.model)
        self.attempts.start(record, stream, continues=continues)

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
                    id=self.headers.request_id,
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
        notes = [*self.headers.client_info.notes, *self.ending.notes, *self.attempts.notes]
        if self.attempts.stream is not None:
            notes += self.attempts.stream.notes
        if self.attempts.reads.is_full:
            notes.append(LONG_STREAM)
        if self.attempts.fold.is_truncated:
            notes.append(LONG_ANSWER)
        if len(notes) > MAX_NOTES:
            more = Note("notes", "dropped", f"{len(notes) - MAX_NOTES} more of them")
            notes = [*notes[:MAX_NOTES], more]
        return notes

    def first_content_sent(self) -> None:
        """Record when the client received the first content.

        Release the request body, as no other target needs it any more.
        """
        if self.attempts.first_content is None:
            self.attempts.first_content = self.response.deadlines.now()
            if self.request.body:
                self.release_request_body()

    def release_request_body(self) -> None:
        """Release the client's body, because the upstream's request body contains the same data."""
        # The upstream's request body is about as large as the client's.
        self.response.reserve_memory(self.request.size)
        self.request.release_body()

    def usage(self) -> Usage:
        """Return the usage that the upstream reported, else an estimate.

        If a hard budget covers the request, unreported values are the worst case that the upstream
        may bill.
        """
        usage = self.attempts.usage(self.request.input_estimate)
        reservation = self.admission.reservation
        if reservation is None or reservation.worst_case is None or not self.attempts.may_be_billed:
            return usage
        return fill_unreported(usage, reservation.worst_case, answered=self.attempts.has_content)

    async def _record_refusal(self, refusal: HttpError) -> None:
        """Write the ledger row of a rejected request, with the body if that is invalid."""
        request_id = self.headers.request_id
        try:
            body = body_to_store(self)
            closing = self.ending.record = close_record(self, refusal)
            await self.recorder.open(open_record(self, body, faulty=body is not None))
            self.recorder.begin_close(closing)
        except JournalUnavailable:
            log.warning("%s refused, and the ledger cannot be written", request_id)
