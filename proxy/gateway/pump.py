"""The pump: upstream's bytes -> decoder -> stream -> client, while the ledger listens.

One ``Attempt`` is one target's try at one request. Its inner loop runs once for each upstream
read, and whatever that read held leaves in one write.
"""

import asyncio
import dataclasses
import hashlib
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from proxy.conf import conf
from translator.anthropic_upstream.stream import CUT
from translator.dialect import Stream, UpstreamError, UpstreamRequest
from translator.errors import BadRequest, BadUpstream, IllegalMove
from translator.notes import Note
from translator.repairs import REFUSED as REPAIRABLE
from translator.secret_redaction import masked_shapes
from translator.upstream_errors import told_in_ours

from .answer_rest import drain, reported_usage
from .decoding import decode_json
from .failures import log_page
from .foreign_limits import told_limits
from .guarding import BUG, ILLEGAL, GrammarGuard
from .hearing import Hearing
from .ledger import Exchange
from .masking import sought
from .outlets import Outlet
from .policies import NONE as NO_POLICIES
from .refusals import SHUTTING_DOWN, STOPPED, UpstreamFailed
from .targets import Target
from .upstream import ERROR_BODY_BYTES, UNDELIVERED, Call, Dial, post, retry_after
from .watch import TIMEOUTS, Stop
from .wishes import Wishes

MAX_ANSWER_BYTES: Final = 64 * 2**20
EVENT_STREAM: Final = ("text/event-stream", "text/event-stream; charset=utf-8")
"""How nearly all servers spell it."""

_encode: Final = msgspec.json.Encoder().encode


class Ended(Exception):
    """With what ``Attempt.flow`` heard: the rest takes somebody who can wait."""


class Attempt:
    """One target's try at answering one request."""

    def __init__(
        self,
        target: Target,
        entry: Exchange,
        outlet: Outlet,
        wishes: Wishes,
    ) -> None:
        self.target = target
        self.entry = entry
        self.outlet = outlet
        self.wishes = wishes
        self.consumer = entry.consumer
        self.watch = entry.consumer.watch
        self.url = target.server.url
        self.secret = sought(target.server.secret)
        self.stream: Stream
        self.body = b""  # for the upstream; empty once it answers: a stream need not keep 400 KB
        self.hearing: Hearing  # of an answer that is streamed
        self.last_read = b""  # of an answer that ended, where a hard budget may need the rest
        self.guard = GrammarGuard()
        self.withheld: list[Note] = []  # what a policy of the upstream left out
        self.known_answer: dict[str, Any] | None = None  # nobody need be asked
        self.origins: tuple[int, ...] = ()  # which message of the client's each of ours tells

    async def run(self) -> None:
        """Raises BadRequest, or UpstreamFailed while the client has seen nothing."""
        self.body, headers = self.translated()
        await self.entry.durable()  # before the dial
        if self.entry.last_try:  # nobody else will make another body of it
            self.entry.let_go()
        try:
            if self.known_answer is not None:
                await self.deliver(self.stream.feed_whole(self.known_answer))
            elif await self._ask(headers, spare=True):
                await self._ask(headers)
        except BadUpstream as exc:
            self.entry.detail = "bad_event"
            await self._end_badly(UpstreamFailed(_broken(str(exc)), detail="bad_event"))
        except UpstreamFailed as exc:
            await self._end_badly(exc)
        except asyncio.CancelledError:
            failure = self._why_stopped()
            if failure is None:
                raise  # the client is gone, or it has seen nothing: the ledger tells it
            self.consumer.resume()
            await self._end_badly(failure)

    def translated(self) -> tuple[bytes, dict[str, str]]:
        """The upstream's body and what headers to add. Sets ``stream``, tells the ledger."""
        server = self.target.server
        asked = {**self.permitted(), "stream": True}  # always streamed: one code path (D6)
        target = self.target.for_translator(asked["model"], self.entry.session_id)
        made = server.dialect.build_request(asked, target)
        self.noted(made)
        self.known_answer, self.origins = made.known_answer, made.origins
        context = made.answer
        context.message_id = f"msg_{self.entry.head.ulid}"
        context.finished_blocks = self.wishes.blocks
        context.input_estimate = context.input_estimate or self.entry.input_estimate
        self.stream = self.entry.stream = server.dialect.stream(context)
        return _encode({**made.body, **server.extra_body}), {}

    def permitted(self) -> dict[str, Any]:
        """The request as this upstream may be told it."""
        self.withheld = []
        policies = self.target.server.policies
        if policies is NO_POLICIES:
            return self.entry.request
        client = " ".join(self.entry.head.client).strip()
        return policies.permitted(self.entry.request, self.withheld, client)

    def noted(self, made: UpstreamRequest) -> None:
        self.entry.notes = [*self.withheld, *made.notes]
        if self.wishes.strict:
            for note in self.entry.notes:
                if note.lossy:
                    raise BadRequest(note.path, f"cannot be translated without loss: {note.reason}")

    async def _ask(self, headers: dict[str, str], *, spare: bool = False) -> bool:
        """Send the body and relay its answer.

        True: nothing was said, the upstream refused what can be spared, and ``body`` was mended.
        """
        call = await self._called(headers)
        try:
            if spare and call.status in REPAIRABLE and await self._mended(call):
                return True
            self.body = b""
            if call.status != 200:
                await self.refused(call)
            else:
                told = call.headers.get("content-type")
                match "events" if told in EVENT_STREAM else await call.kind():
                    case "events":
                        await self.relay_events(call)
                    case "json":
                        await self.relay_whole(call)
                    case kind:
                        call.dial.refused = True
                        self.keep(call, await call.peek())
                        error = _broken(f"upstream answered with {kind}")
                        raise UpstreamFailed(error, detail="bad_type")
            if self.last_read and self.stream.stop_reason == "stop_sequence":
                dialect = self.target.server.dialect
                usage = await reported_usage(call, dialect, self.last_read, self.watch)
                self.entry.late_usage = usage
            self.watch.wait = None
            if not call.wire.is_over:
                await drain(call)
        finally:
            call.close()
        return False

    async def _mended(self, call: Call) -> bool:
        """Strict clients rather hear the refusal than lose something."""
        if self.consumer.unheard_from is not None:
            return False  # nobody waits for another try
        try:
            raw = await call.preview()
            refusal = decode_json(raw)
        except BadUpstream:
            return False
        repair = self.target.server.dialect.repair(decode_json(self.body), call.status, refusal)
        if repair is None or (self.wishes.strict and repair.note.lossy):
            return False
        self.keep(call, raw)
        self.entry.notes.append(repair.note)
        self.body = _encode(repair.body)
        return True

    async def _called(self, headers: dict[str, str]) -> Call:
        """Send the body; once more, if the first one provably never arrived."""
        self.watch.begin(
            self.target.server.timeouts,
            conf.write_timeout_s,
            self._tick,
            conf.ping_interval_s,
            conf.hold_s,
        )
        self.entry.body_digest = hashlib.sha256(self.body).hexdigest()
        try:
            call = await self._dial(headers)
        except UpstreamFailed as exc:
            if exc.detail != UNDELIVERED or self.consumer.unheard_from is not None:
                raise
            call = await self._dial(headers)
        self.entry.upstream_request_id = call.request_id
        answer = self.consumer
        answer.extra_headers = told_limits(answer.extra_headers, call.headers)
        return call

    def _dial(self, headers: dict[str, str]) -> Coroutine[Any, Any, Call]:
        """To be awaited at once."""
        server = self.target.server
        model = self.target.model_for(self.entry.model)
        dial = Dial(server.name, model, self.watch.now())
        self.entry.dialled(dial, self.target, self.stream)
        if self.entry.trace is not None:
            headers = headers | self.entry.trace.dialled(self.target, self.entry.request, model)
        self.watch.wait, self.watch.since = Stop.FIRST_BYTE, dial.at
        return post(
            server, self.url, self.body, headers, dial,
            loop=self.watch.loop, key_id=self.entry.caller.key_id,
        )  # fmt: skip

    async def refused(self, call: Call) -> None:
        """A status other than 200: raises UpstreamFailed, or tells of a policy refusal."""
        raw = await call.beginning()
        self.keep(call, raw)
        error = told_in_ours(upstream_error(self.target, call, raw), self.origins)
        if error.error_type == "not_found_error" and error.param == "model":
            error = dataclasses.replace(error, message=f"model: {self.entry.model[:200]}")
        answers = self.target.server.profile.refused_prompt == "answer"
        if error.is_refusal and answers:  # an answer in Anthropic's terms: stop_reason "refusal"
            events = self.stream.feed_whole(decode_json(raw))
            if self.stream.error is None:
                return await self.deliver(events)
        raise UpstreamFailed(error, detail=f"status_{call.status}")

    def keep(self, call: Call, raw: bytes) -> None:
        """What came instead of an answer, in the transcript. The log gets no word of it."""
        log_page(self.target.server.name, call.status, raw)
        if raw:
            self.entry.read(masked_shapes(raw), self.watch.now())

    async def relay_events(self, call: Call) -> None:
        stream, watch, entry = self.stream, self.watch, self.entry
        hearing = self.hearing = Hearing(stream, self.target.server.dialect_name)
        while not stream.finished:
            watch.wait, watch.since = Stop.IDLE, watch.now()  # as ``expect``: twice for each read
            try:
                raw = await call.read(self.flow)
            except Ended:
                return await self.deliver(hearing.events)
            except IllegalMove as cause:
                return await self._end_here(hearing.events, cause)
            watch.wait, watch.since = Stop.WRITE, watch.now()
            try:
                hearing.feed(raw)
            except BadUpstream:
                entry.read(masked_shapes(raw), watch.since)
                await self.deliver(hearing.events)  # what came before it is sound
                raise
            if raw:
                entry.read(raw, watch.since)  # now: it is known whether it holds an error
            self._ended_in(raw)
            await self.deliver(hearing.events)
            del raw  # or it is kept for as long as all that follows flows past here
        return None

    def flow(self, raw: bytes) -> bool:
        """Take a read of plain deltas, and nothing else, while ``relay_events`` waits for one.

        The connection itself calls this: a paced delta wakes nobody on its way from one socket to
        the other. False: it takes somebody who can wait. Raises Ended, or IllegalMove for a bug of
        ours; what may leave before it is in ``hearing.events``.
        """
        outlet, hearing = self.outlet, self.hearing
        if self.secret in raw or not outlet.flows or not hearing.flow(raw):
            return False  # ``Call.read`` masks the secret
        now = self.watch.since = self.watch.now()
        self.entry.read(raw, now)
        if self.stream.finished:
            self._ended_in(raw)
            raise Ended
        hearing.events, cause = self.guard.sound(hearing.events)
        if cause is not None:
            raise cause
        if hearing.events:
            outlet.flow(hearing.events, now)
        return True

    def _ended_in(self, raw: bytes) -> None:
        if self.stream.finished and self.entry.counts_all:
            self.last_read = raw

    async def relay_whole(self, call: Call) -> None:
        self.watch.expect(Stop.IDLE)
        raw = await call.whole(MAX_ANSWER_BYTES)
        if raw is None:
            raise BadUpstream("upstream's answer is too large")
        events = self.stream.feed_whole(self.decoded(raw))
        self.entry.read(raw, self.watch.now())
        await self.deliver(events)

    def decoded(self, raw: bytes) -> dict[str, Any]:
        """A whole answer. What is none may be an error: it is kept without credentials."""
        fault: Exception
        try:
            if isinstance(value := decode_json(raw), dict):
                return value
            fault = UpstreamFailed(self.target.server.dialect.map_error(502, value))
        except BadUpstream as exc:
            fault = exc
        self.entry.read(masked_shapes(raw[:ERROR_BODY_BYTES]), self.watch.now())
        raise fault

    async def deliver(self, events: list[dict[str, Any]], raw: bytes | None = None) -> None:
        """Hand events to the client; a failure that it need not see yet is raised instead.

        ``raw``: their bytes, where they are handed on as they came.
        """
        stream = self.stream
        if stream.error is not None:
            if stream.fault is None and stream.error is not CUT and self.entry.dials:
                self.entry.dials[-1].refused = True  # an error event: the upstream's own word
            if not self.outlet.committed:
                detail = "bad_event" if stream.fault is not None else ""
                raise UpstreamFailed(stream.error, detail=detail)
            self.entry.outcome = "upstream_error"
        if raw is None:  # else the stream itself guards what it hands on
            events, cause = self.guard.sound(events)
            if cause is not None:
                return await self._end_here(events, cause)
        last = stream.finished
        if events or raw or last:
            await self.outlet.take(events, last=last, raw=raw)
        return None

    async def _end_here(self, events: list[dict[str, Any]], cause: IllegalMove) -> None:
        """A bug of ours: what was sound leaves, then an error, and the row tells what it was."""
        stream, entry = self.stream, self.entry
        stream.fault, stream.error = cause, BUG
        stream.unknown.add(ILLEGAL)
        entry.outcome, entry.detail = "gateway_error", ILLEGAL
        if self.outlet.committed:
            await self.outlet.take([*events, *self.guard.closing()], last=True)
        raise UpstreamFailed(BUG, outcome="gateway_error", detail=ILLEGAL)

    async def _end_badly(self, failure: UpstreamFailed) -> None:
        """End the client's stream in an error, or pass the failure on if it saw nothing yet."""
        self.entry.detail = failure.detail
        if not self.outlet.committed:
            raise failure.anew()
        if self.stream.finished or self.consumer.complete:
            return
        self.entry.outcome = failure.outcome
        await self.outlet.take(self.stream.fail(failure.error), last=True)

    def _why_stopped(self) -> UpstreamFailed | None:
        """The failure behind a cancellation; None: nobody is left to be told, or all of it yet."""
        stop = self.consumer.stopped
        if stop in TIMEOUTS:
            message = "the upstream took too long to answer"
            if stop is Stop.IDLE:
                message = "the upstream fell silent in the middle of its answer"
            error = UpstreamError(status=504, error_type="timeout_error", message=message)
            return UpstreamFailed(error, outcome="upstream_timeout", detail=stop.value)
        if stop is None and self.outlet.committed:
            return UpstreamFailed(SHUTTING_DOWN, outcome="drained")
        if stop is Stop.STOPPED and self.outlet.committed:
            return UpstreamFailed(STOPPED, outcome="refused", detail=stop.value)
        return None

    def _tick(self, now: float) -> None:
        self.outlet.tick(now)
        self.entry.tick(now)


def upstream_error(target: Target, call: Call, raw: bytes) -> UpstreamError:
    """The upstream's error answer in Anthropic's terms (mapping.md 5.2)."""
    try:
        body = decode_json(raw)
    except BadUpstream:
        body = raw.decode("utf-8", "replace")
    if call.status < 400:  # 204, 206, and redirects, which are never followed
        return _broken(f"upstream answered with status {call.status}")
    error = target.server.dialect.map_error(call.status, body)
    seconds = retry_after(call.headers)
    if seconds is not None:  # what a text says counts where no header does
        error = dataclasses.replace(error, retry_after_s=seconds)
    return error


def _broken(message: str) -> UpstreamError:
    return UpstreamError(status=502, error_type="api_error", message=message)
