"""The ledger's side of a request: opened before the dial, closed once on every way out.

An ``Exchange`` collects what became of the request while it runs; leaving its ``async with``
writes that down, whether the answer ended, failed, was refused, or its client went away.
"""

import contextlib
import json
import logging
import time
from array import array
from types import TracebackType
from typing import Any, Final, Self

from proxy.live.running import RUNNING, Row
from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing
from proxy.record.pricing import cost_of
from proxy.record.recorder import recorder
from proxy.record.records import Chunk
from proxy.record.unreported_usage import fill_unreported
from translator.anthropic.fold import MessageFold
from translator.anthropic.usage import Usage
from translator.dialect import Stream
from translator.notes import Note

from .base import StreamingHttpConsumer
from .budgets import Hold
from .directory import Caller, directory
from .entries import close_record, open_record, price_of, session_in, usage_record
from .failures import log_ending, log_refusal
from .faulty import kept_of
from .glance import row_of
from .limits import Seat
from .masking import masked_error
from .refusals import Refusal, refusal_of, stopped
from .routes import Route
from .targets import Target
from .tracing import tracing
from .upstream import Dial
from .watch import Stop
from .wishes import PLAIN

log = logging.getLogger("proxy.gateway")

SESSION: Final = b"x-claude-code-session-id"
CHECKPOINT_S: Final = 1.0  # at most so much of an answer's text is lost when the process dies
CHECKPOINT_BYTES: Final = 64 * 1024
MOST_READ_BYTES: Final = 32 * 2**20
"""Of an upstream's own bytes that a transcript keeps: of 200 a token, 160,000 tokens. What follows
still reaches the client, but an answer without end must not fill the spool."""
LONG_STREAM: Final = Note("answer", "dropped", "the upstream's stream after its first 32 MiB")
LONG_ANSWER: Final = Note("answer", "dropped", "the answer's text after its first 16 Mi characters")
HEARD_OUT: Final = "heard_out"
FOR_BUDGET: Final = Note(
    "answer", "dropped", "the client left; the upstream is read to the end for its hard budget"
)
GOES_ON: Final = Note(
    "answer", "dropped", "the client left; its upstream is heard to the end: it bills all of it"
)
MOST_NOTES: Final = 200
"""Of one request: each block of a conversation may have one of its own."""
KEPT_FIELDS: Final = ("stream", "max_tokens", "temperature", "top_p", "top_k")
"""Of a request, when nobody will translate it again: for its row, its trace and the live view."""
BYTES_PER_TOKEN: Final = 4  # of English text and code; only for what no upstream reported


class Exchange:
    """One request of a known caller, from its key to its row."""

    # Beyond thirty names Python gives each exchange a table of its own, of 1.5 KB.
    __slots__ = (
        "_kept_bytes", "_opening", "_reads", "_reads_bytes", "_reads_ms", "_saved_at", "accepted",
        "began", "body", "body_digest", "caller", "consumer", "created", "detail", "dials",
        "faulty", "first_content", "fold", "head", "hold", "input_estimate", "last_try",
        "late_usage", "message", "model", "notes", "outcome", "prices", "remarks", "request",
        "request_bytes", "route_name", "seat", "session_id", "stopped_by", "stream", "target",
        "target_record", "trace", "upstream_request_id", "wishes",
    )  # fmt: skip

    def __init__(self, consumer: StreamingHttpConsumer, caller: Caller) -> None:
        self.consumer = consumer
        consumer.entry = self
        self.head = head = consumer.head
        self.trace = tracing.of(head) if tracing.on else None
        self.caller = caller
        self.created = time.time()
        self.began = consumer.began
        self.accepted = False  # its open record is durable
        self._opening: Landing | None = None  # until then
        self.request: dict[str, Any] = {}
        self.body = b""  # the client's bytes
        self.faulty = b""  # the same, if they are what the request is refused for
        self.last_try = False  # there is no other target
        self.model = ""  # as the client named it
        self.request_bytes = 0
        self.input_estimate = 0  # tokens
        self.session_id = head.text(SESSION, 200) if SESSION in head.headers else ""
        """The conversation that the request goes on with; empty: it does not say."""
        self.wishes = PLAIN  # of the client and its key
        self.route_name = ""
        self.seat: Seat | None = None
        self.hold: Hold | None = None  # of its budgets
        self.prices = directory.snapshot.prices  # a price that changes meanwhile is not ours
        self.remarks: list[Note] = []  # of the gateway itself
        self.target: Target | None = None  # who answers, or was the last to be tried
        self.target_record: dict[str, Any] = {}  # the same, as the records keep it
        self.dials: list[Dial] = []
        self.notes: list[Note] = []  # of the request's translation
        self.stream: Stream | None = None
        self.late_usage: Usage | None = None  # reported behind an answer that we ended ourselves
        self.fold = MessageFold()  # of the answer's events: the message that the transcript keeps
        self.message: dict[str, Any] | None = None  # the whole answer, where it was made anyway
        self.first_content: float | None = None
        self.outcome = ""  # empty: decided when the exchange is left
        self.detail = ""
        self.stopped_by = ""  # the name of who did, in the admin
        self.body_digest = ""
        self.upstream_request_id = ""
        # When each came apart from what came: a pair of both would be 72 bytes more of each.
        self._reads: list[bytes] = []
        self._reads_ms = array("d")  # since the dial
        self._reads_bytes = 0
        self._kept_bytes = 0  # of this attempt, with those
        self._saved_at = self.began

    async def __aenter__(self) -> Self:
        RUNNING[self.head.request_id] = self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Answer what went wrong, then write the row. Returns whether the exception is dealt with.

        The client is told first: it need not wait for our disk.
        """
        RUNNING.pop(self.head.request_id, None)  # first: who writes its row is not to be stopped
        if exc is None and self.consumer.stopped is None:  # all is well
            self._close(None, None)
            return False
        self.consumer.watch.end()  # a late alarm would cut the refusal
        refusal = self._refusal(exc)
        try:
            if isinstance(exc, Exception):
                await self.consumer.refuse(exc)
            elif refusal is not None and not self.consumer.begun:
                await self.consumer.refuse(refusal)
        finally:  # it may leave while it is told: there is a row all the same
            await self._write(refusal, exc)
        return isinstance(exc, Exception)

    def _refusal(self, exc: BaseException | None) -> Refusal | None:
        """What the client is told instead of the rest of its answer, if anything."""
        if isinstance(exc, Exception):
            return refusal_of(exc)
        if self.consumer.stopped is Stop.STOPPED:
            return stopped()
        if self.consumer.stopped is not None:
            return None  # the client is gone or does not read
        return Refusal(  # the server cancels us
            529, "overloaded_error", "the gateway is shutting down", {"retry-after": "1"},
            outcome="drained", source="gateway",
        )  # fmt: skip

    async def _write(self, refusal: Refusal | None, exc: BaseException | None) -> None:
        if self._opening is not None:  # refused while it was translated
            with contextlib.suppress(SpoolUnavailable):
                await self.durable()
        if self.accepted:
            self._close(refusal, exc)
            return
        try:
            if refusal is not None:
                log_refusal(self.head.request_id, refusal, exc)
                await self._record_refusal(refusal)
        finally:
            if self.hold is not None:
                self.hold.end(None)

    def _close(self, refusal: Refusal | None, exc: BaseException | None) -> None:
        closing = self.consumer.closing = close_record(self, refusal)
        try:
            if closing.outcome != "completed":
                log_ending(closing, self.stream.error if self.stream else None, exc)
            recorder.settle(closing, self.consumer.watch.loop)
            closing.reads.clear()  # they are said; whoever counts keeps the rest for a second
        finally:
            if self.hold is not None:
                self.hold.end(closing)

    def received(self, body: bytes, request: dict[str, Any]) -> None:
        self.body, self.request = body, request
        self.request_bytes = len(body)
        self.input_estimate = self.request_bytes // BYTES_PER_TOKEN
        self.model = request["model"]
        if not self.session_id and "metadata" in request:
            self.session_id = session_in(request["metadata"])

    def glance(self) -> Row:
        return row_of(self)

    def stop_by(self, who: str) -> None:
        self.consumer.watch.soon(lambda: self._stop_by(who))

    def _stop_by(self, who: str) -> None:
        if self.stopped_by or RUNNING.get(self.head.request_id) is not self:
            return
        self.stopped_by = who
        self.remarks.append(Note("answer", "dropped", f"stopped by {who} in the admin"))
        self.consumer.stop(Stop.STOPPED)

    def goes_on(self) -> bool:
        """Whether the answer is heard to its end, now that nobody listens.

        Where its upstream bills all of it, or a hard budget must learn what it cost.
        """
        if not self.dials or self.target is None:
            return False
        for_budget = self.counts_all and self.dials[-1].may_be_billed
        if not (self.target.server.hears_out or for_budget):
            return False
        self.outcome, self.detail = "client_gone", HEARD_OUT
        self.remarks.append(GOES_ON if self.target.server.hears_out else FOR_BUDGET)
        return True

    @property
    def counts_all(self) -> bool:
        """A hard budget covers the request: it counts all that may have been spent."""
        return self.hold is not None and self.hold.worst_case is not None

    def charge_attempt(self) -> None:
        """Another target is tried: keep what the failed attempt may have cost a hard budget."""
        if not (self.counts_all and self.dials):
            return
        dial, usage = self.dials[-1], usage_record(self.usage())
        cost = cost_of(usage, price_of(self, dial.upstream, dial.model))
        if cost is not None:
            usage = {name: value for name, value in usage.items() if value is not None}
            dial.charge = {"usage": usage, "cost_nanousd": cost.total}

    async def accept(self, route: Route, seat: Seat) -> None:
        """Begin to write the open record: the request is translated while the disk takes it."""
        self.seat = seat
        self.route_name = route.name
        self.target = route.targets[0]
        self.target_record = self.target.as_record(self.model)
        body = self.body if self.caller.team.store_full else None
        self._opening = await recorder.enter(open_record(self, body), self.consumer.watch.loop)

    async def durable(self) -> None:
        """Returns when the open record is on the disk. Raises SpoolUnavailable."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await opening.landed()
            self.accepted = True

    def dialled(self, dial: Dial, target: Target, stream: Stream) -> None:
        """Another attempt goes out: what an earlier one said no longer counts."""
        if self.dials:
            self.checkpoint(broken=True)
            self.fold = MessageFold()
            self._kept_bytes = 0
            self.upstream_request_id = ""
            self.consumer.extra_headers = [*self.seat.headers] if self.seat is not None else []
        if target is not self.target:
            self.target, self.target_record = target, target.as_record(self.model)
        self.dials.append(dial)
        self.stream = stream
        self._saved_at = dial.at

    def read(self, raw: bytes, now: float) -> None:
        """Keep what the upstream said, for the transcript; ``now`` by the event loop's clock."""
        if not self.caller.team.store_full or self._kept_bytes >= MOST_READ_BYTES:
            return
        size = len(raw)
        self._kept_bytes += size
        self._reads.append(raw)
        self._reads_ms.append((now - self.dials[-1].at) * 1000)
        self._reads_bytes += size
        if self._reads_bytes >= CHECKPOINT_BYTES:
            self.checkpoint()

    def tick(self, now: float) -> None:
        if self._reads and now - self._saved_at >= CHECKPOINT_S:
            self.checkpoint()

    def checkpoint(self, *, broken: bool = False) -> None:
        """Hand what was read so far to the spool; nobody waits for it."""
        self._saved_at = self.consumer.watch.now()
        if self.stream is not None and self.stream.error is not None:
            broken = True
        if reads := self.unsaved(broken=broken):
            attempt = len(self.dials) - 1
            target = self.target_record if attempt else {}
            recorder.chunk(
                Chunk(
                    id=self.head.request_id,
                    reads=reads,
                    attempt=attempt,
                    target=target,
                    status=self.dials[-1].status or 200,
                )
            )

    def unsaved(self, *, broken: bool = False) -> list[tuple[float, bytes]]:
        """What was read since the last checkpoint, for a record; it is kept here no longer.

        ``broken``: the answer did not end well, so its last read may hold an error.
        """
        if not self._reads or self.target is None:
            return []
        reads = [*zip(self._reads_ms, self._reads, strict=True)]
        self._reads, self._reads_ms, self._reads_bytes = [], array("d"), 0
        return masked_error(reads) if broken else reads

    def all_notes(self) -> list[Note]:
        """Also of what the transcript leaves out, because there was too much of it."""
        notes = [*self.head.about.remarks, *self.remarks, *self.notes]
        if self.stream is not None:
            notes += self.stream.notes
        if self._kept_bytes >= MOST_READ_BYTES:
            notes.append(LONG_STREAM)
        if self.fold.full:
            notes.append(LONG_ANSWER)
        if len(notes) > MOST_NOTES:
            more = Note("notes", "dropped", f"{len(notes) - MOST_NOTES} more of them")
            notes = [*notes[:MOST_NOTES], more]
        return notes

    def answered(self) -> dict[str, Any] | None:
        """The message so far; None: nothing came."""
        return self.message or self.fold.message or None

    def spoke(self) -> None:
        """The first content leaves: no other target will need the request, so let it go."""
        if self.first_content is None:
            self.first_content = self.consumer.watch.now()
            if self.body:
                self.let_go()

    def let_go(self) -> None:
        """Of what may be large: what the upstream is told is there a third time."""
        self.consumer.hold(self.request_bytes)  # as much as the upstream's body, which goes out
        asked, self.body = self.request, b""
        self.request = {name: asked[name] for name in KEPT_FIELDS if name in asked}

    def usage(self) -> Usage:
        """What the upstream reported, or an estimate of what it must have counted.

        Where it never began to answer, nothing is estimated, as nothing may have been billed; but
        a hard budget is charged the worst case of what the upstream may have done unseen.
        """
        if self.stream is None:
            return Usage()
        usage = self.late_usage or self.stream.usage
        content = (self.answered() or {}).get("content")
        if usage.source == "missing" and content:
            said = len(json.dumps(content, ensure_ascii=False).encode())
            usage = Usage(
                input=self.input_estimate,
                output=said // BYTES_PER_TOKEN,
                source="estimated",
            )
        hold = self.hold
        if hold is None or hold.worst_case is None or not self.dials:
            return usage
        if not self.dials[-1].may_be_billed:
            return usage
        return fill_unreported(usage, hold.worst_case, answered=bool(content))

    async def _record_refusal(self, refusal: Refusal) -> None:
        """A refused request of a known key has a row too; its body is kept if it is the fault."""
        try:
            body = kept_of(self)
            closing = self.consumer.closing = close_record(self, refusal)
            await recorder.open(open_record(self, body, faulty=body is not None))
            recorder.settle(closing)
        except SpoolUnavailable:
            log.warning("%s refused, and the ledger cannot be written", self.head.request_id)
