"""One attempt to answer a request: call an upstream, translate its response, send it to the client.

The relay loop runs once for each read from the upstream and sends the translated events in one
write. It also updates the records for the ledger.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from proxy.gateway.admission.client_options import ClientOptions
from proxy.gateway.exchange.call_record import load_calls, save_calls
from proxy.gateway.exchange.request_context import RequestContext
from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.error_log import log_non_json_response
from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import Target
from proxy.gateway.snapshot.upstream_policies import NO_POLICIES
from translator.anthropic.token_estimate import estimate_tokens
from translator.anthropic_upstream.stream import ENDED_EARLY
from translator.dialect import ResponseContext, Stream, TextStream, UpstreamError
from translator.errors import BadRequest, BadUpstream
from translator.message_stream.response_stream import INTERNAL_ERROR
from translator.notes import Note
from translator.request.retry_repairs import REFUSAL_STATUSES, REPAIRABLE
from translator.secret_redaction import mask_secrets
from translator.upstream_errors import map_error_paths

from .attempt_calls import AttemptCalls
from .client import ERROR_BODY_BYTES, UpstreamResponse
from .decoding.response_decoder import ResponseDecoder
from .documents import PdfText, load_pdf_texts, with_pdf_texts, with_texts_of_files
from .error_responses import bad_gateway_error, cancellation_error, decode_answer, upstream_error
from .model_memory import adapt_body
from .request_repairs import MAX_REPAIRS, RequestRepairs
from .response_drain import drain, reported_usage
from .response_writers import CONTENT, ResponseWriter

MAX_ANSWER_BYTES: Final = 64 * 2**20
EVENT_STREAM: Final = ("text/event-stream", "text/event-stream; charset=utf-8")
"""The usual values of ``content-type`` for SSE. They are compared without parsing."""

NO_STATUS: Final = 400
"""The status with which an error event is read that has none, or one that would hide a refusal."""
ILLEGAL: Final = "illegal_move"
"""The ``detail`` in the ledger of a response that ended because of a bug in the translator."""

log = logging.getLogger("proxy.gateway")
_encode: Final = msgspec.json.Encoder().encode


class Attempt(AttemptCalls):
    """One attempt to answer a request by calling one target."""

    def __init__(
        self, target: Target, entry: RequestContext, writer: ResponseWriter, options: ClientOptions
    ) -> None:
        super().__init__(target, entry, writer)
        self.options = options
        # None for a passthrough, whose errors go to the client as they are
        self.context: ResponseContext | None = None
        # the read that ended the response, to find its usage for a hard budget
        self.last_read = b""
        self.repairs = RequestRepairs(target.server)
        self.withheld: list[Note] = []  # notes about content that an upstream policy removed
        self.pdf_texts: dict[int, PdfText] = {}  # what the request's PDFs say
        self.known_answer: dict[str, Any] | None = None  # a response that needs no upstream call

    async def run(self) -> None:
        """Run the attempt.

        Raises BadRequest, or UpstreamFailed if the client has received nothing yet.
        """
        self.entry.attempts.recorded_calls = await load_calls(self.entry, self.target)
        received = self.entry.request
        self.pdf_texts = await load_pdf_texts(
            received.body, received.fields, self.target, self.entry.caller.team.id
        )
        self.body, headers = self.build_upstream_request()
        await self.entry.wait_until_recorded()  # the record must be on the disk first
        if self.entry.attempts.is_last_target:  # no further attempt needs the client's body
            self.entry.release_request_body()
        try:
            if self.known_answer is not None:
                await self.deliver(self.stream.feed_body(self.known_answer))
            else:
                await self.send_with_repairs(headers)
        except BadUpstream as exc:
            self.entry.ending.detail = "bad_event"
            await self._abort_after_upstream_error(
                UpstreamFailed(bad_gateway_error(str(exc)), detail="bad_event")
            )
        except UpstreamFailed as exc:
            await self._abort_after_upstream_error(exc)
        except asyncio.CancelledError:
            failure = cancellation_error(self.response.cancel_reason, self.writer.committed)
            if failure is None:
                raise  # the client is gone or has received nothing: the caller handles it
            self.response.clear_cancellation()
            await self._abort_after_upstream_error(failure)

    def build_upstream_request(self) -> tuple[bytes, dict[str, str]]:
        """Return the upstream's request body and extra headers.

        Also set ``stream`` and record notes.
        """
        server = self.target.server
        # The upstream always streams, so there is only one code path.
        request = with_pdf_texts(self.translatable_request(), self.pdf_texts, self.withheld)
        if self.pdf_texts:  # a text has other tokens than the pages of which it was read
            self.entry.request.input_estimate = estimate_tokens(request)
        request = {**request, "stream": True}
        target = self.target.for_translator(request["model"], self.entry.request.session_id)
        target.recorded_calls = self.entry.attempts.recorded_calls
        self.url = server.url_for(target.model)
        upstream_request = server.dialect.build_request(request, target)
        body = {**upstream_request.body, **server.extra_body}
        body, notes, self.repairs.origins = adapt_body(
            body, server, target.model, upstream_request.origins
        )
        self.record_translation_notes([*upstream_request.notes, *notes])
        self.known_answer = upstream_request.local_response
        context = self.context = upstream_request.response_context
        context.message_id = f"msg_{self.entry.headers.ulid}"
        context.finished_blocks = self.options.blocks
        context.whole = not self.entry.request.streaming
        context.input_estimate = context.input_estimate or self.entry.request.input_estimate
        self.stream = self.entry.attempts.stream = self.open_stream(context)
        return _encode(body), {}

    def translatable_request(self) -> dict[str, Any]:
        """Return the request to translate for the next call of the upstream."""
        return self.apply_upstream_policies()

    def open_stream(self, context: ResponseContext) -> Stream:
        """Return the stream that translates the next response."""
        return self.target.server.dialect.stream(context)

    @property
    def response_finished(self) -> bool:
        """Whether the upstream's response has ended. The client's message may continue."""
        return self.stream.finished

    def apply_upstream_policies(self) -> dict[str, Any]:
        """Return the client's request without the content that the upstream's policies drop."""
        self.withheld = []
        policies = self.target.server.policies
        if policies is NO_POLICIES:
            return self.entry.request.fields
        client = " ".join(self.entry.headers.client).strip()
        return policies.filter_request(self.entry.request.fields, self.withheld, client)

    def record_translation_notes(self, notes: Sequence[Note]) -> None:
        self.entry.attempts.notes = [*self.withheld, *notes]
        if self.options.strict and not self.continues:  # it is about the client's own request
            for note in self.entry.attempts.notes:
                if note.lossy:
                    raise BadRequest(note.path, f"cannot be translated without loss: {note.reason}")

    async def send_with_repairs(self, headers: dict[str, str]) -> None:
        """Send the body, and again without what the upstream rejects, ``MAX_REPAIRS`` times."""
        for _ in range(MAX_REPAIRS):
            try:
                if not await self._send_and_relay(headers, allow_repair=True):
                    return
            except UpstreamFailed as exc:
                if not await self._repair_error_event(exc.error):
                    raise
        await self._send_and_relay(headers)

    async def _send_and_relay(self, headers: dict[str, str], *, allow_repair: bool = False) -> bool:
        """Send the body to the upstream and relay its response.

        Return True if the caller must retry: the upstream rejected an optional part of the request,
        and that part is now removed from ``body``.
        """
        call = await self.post_with_valid_credential(headers)
        try:
            if allow_repair and call.status in REPAIRABLE and await self._repair_and_retry(call):
                return True
            if call.status != 200:
                self.body = b""
                await self.handle_error_status(call)
            else:
                content_type = call.headers.get("content-type")
                match "events" if content_type in EVENT_STREAM else await call.kind():
                    case "events":
                        # A task of its own: a read then resumes three coroutines instead of nine.
                        await self.watch.loop.create_task(self.relay_events(call))
                    case "json":
                        await self.relay_json(call)
                    case kind:
                        call.record.refused = True
                        self.store_error_body(call, await call.peek())
                        error = bad_gateway_error(f"upstream answered with {kind}")
                        raise UpstreamFailed(error, detail="bad_type")
            if self.last_read and self.stream.stop_reason == "stop_sequence":
                dialect = self.target.server.dialect
                usage = await reported_usage(call, dialect, self.last_read, self.watch)
                self.entry.attempts.late_usage = usage
            self.watch.wait = None
            if not call.connection.response_complete:
                await drain(call)
        finally:
            call.close()
        return False

    async def _repair_and_retry(self, call: UpstreamResponse) -> bool:
        """Remove the part that the upstream rejected from ``body``, if it is optional.

        Return whether it was removed. In strict mode, a lossy removal is not made.
        """
        if self.response.bytes_at_disconnect is not None:
            return False  # the client has disconnected
        try:
            raw = await call.peek_error_body()
        except BadUpstream:
            return False
        try:
            refusal = decode_json(raw)
        except BadUpstream:  # plain text: axum's and Go's frameworks
            refusal = raw.decode("utf-8", "replace")
        refused = self.body
        if not await self._apply_repair(call.status, refusal):
            return False
        if self.repairs.refused_files:
            self.body = await with_texts_of_files(refused, self.entry.caller.team.id)
        self.store_error_body(call, raw)
        return True

    async def _repair_error_event(self, error: UpstreamError) -> bool:
        """Repair ``body`` after an error event in a response with status 200 (SGLang, TGI).

        Return whether it was repaired. The client must not have received anything.
        """
        if self.context is None or self.writer.committed or error is not self.stream.error:
            return False
        refusal = {"message": error.message, "code": error.code, "param": error.param}
        status = error.status if error.status in REFUSAL_STATUSES else NO_STATUS
        if not (self.body and await self._apply_repair(status, {"error": refusal})):
            return False
        self.stream = self.open_stream(self.context)
        self.writer.discard_start()
        return True

    async def _apply_repair(self, status: int, refusal: Any) -> bool:
        """Repair ``body`` if the upstream's error allows it; return whether it was repaired."""
        notes = self.entry.attempts.notes
        body = await self.repairs.apply(
            self.body, status, refusal, notes, strict=self.options.strict
        )
        self.body = body or self.body
        return body is not None

    async def handle_error_status(self, call: UpstreamResponse) -> None:
        """Handle an upstream status other than 200.

        Raises UpstreamFailed, except if the upstream refused the prompt: then the client may get a
        response with stop_reason ``refusal``.
        """
        raw = await call.read_error_body()
        self.store_error_body(call, raw)
        error = map_error_paths(upstream_error(self.target, call, raw), self.repairs.origins)
        if error.error_type == "not_found_error" and error.param == "model":
            error = dataclasses.replace(error, message=f"model: {self.entry.request.model[:200]}")
        answers = self.target.server.profile.refused_prompt == "answer"
        if error.is_refusal and answers:  # sent with the stop_reason "refusal"
            events = self.stream.feed_body(decode_json(raw))
            if self.stream.error is None:
                return await self.deliver(events)
        raise UpstreamFailed(error, detail=f"status_{call.status}")

    def store_error_body(self, call: UpstreamResponse, raw: bytes) -> None:
        """Store the body of an upstream's error in the transcript. It is not logged."""
        log_non_json_response(self.target.server.name, call.status, raw)
        if raw:
            self.entry.store_upstream_bytes(mask_secrets(raw), self.watch.now())

    async def relay_events(self, call: UpstreamResponse) -> None:
        """The relay loop: read, decode, translate and send until the response ends."""
        stream, watch, entry = self.stream, self.watch, self.entry
        # ``Passthrough`` relays Anthropic's events; all other dialects have a ``TextStream``.
        decoder = ResponseDecoder(cast("TextStream", stream), self.target.server.dialect_name)
        while not self.response_finished:
            watch.start_wait(CancelReason.IDLE)
            raw = await call.read()
            watch.start_wait(CancelReason.WRITE)
            try:
                decoder.feed(raw)
            except BadUpstream:
                entry.store_upstream_bytes(mask_secrets(raw), watch.since)
                await self.deliver(decoder.events)  # only the valid events before the invalid one
                raise
            if raw:
                # stored after decoding, which shows whether the bytes are an error
                entry.store_upstream_bytes(raw, watch.since)
            if stream.finished and entry.admission.has_hard_budget:
                self.last_read = raw
            del raw  # this frees memory before the next wait
            await self.deliver(decoder.events)

    async def relay_json(self, call: UpstreamResponse) -> None:
        self.watch.start_wait(CancelReason.IDLE)
        raw = await call.read_all(MAX_ANSWER_BYTES)
        if raw is None:
            raise BadUpstream("upstream's answer is too large")
        events = self.stream.feed_body(self.decode_answer(raw))
        self.entry.store_upstream_bytes(raw, self.watch.now())
        await self.deliver(events)

    def decode_answer(self, raw: bytes) -> dict[str, Any]:
        """Decode a JSON response. Store what is no answer, with masked credentials, and raise."""
        try:
            return decode_answer(self.target, raw)
        except (BadUpstream, UpstreamFailed):
            self.entry.store_upstream_bytes(mask_secrets(raw[:ERROR_BODY_BYTES]), self.watch.now())
            raise

    async def deliver(self, events: list[dict[str, Any]], raw: bytes | None = None) -> None:
        """Send events to the client.

        Raises UpstreamFailed if the stream failed before the client received anything. ``raw``: the
        upstream's own bytes, to send in place of encoded events.
        """
        if self.stream.error is not None:
            self._record_stream_error(self.stream.error)
        last = self.stream.finished
        if last and self.stream.call_records:  # before the client can send its next request
            await save_calls(self.entry, self.target, self.stream)
        if events or raw or last:
            is_answered = raw or last or any(event["type"] in CONTENT for event in events)
            if self.body and is_answered:  # the upstream has accepted the body
                self.body = b""
                self.repairs.remember(self.target.model_for(self.entry.request.model))
            await self.writer.write_events(events, last=last, raw=raw)

    def _record_stream_error(self, error: UpstreamError) -> None:
        """Record the error that ended the stream.

        Raise UpstreamFailed if the client has received nothing.
        """
        stream, entry = self.stream, self.entry
        outcome, detail = "upstream_error", "bad_event" if stream.fault is not None else ""
        if error is INTERNAL_ERROR:
            log.error("the translator broke the grammar of the stream", exc_info=stream.fault)
            stream.unknown.add(ILLEGAL)
            outcome, detail = "gateway_error", ILLEGAL
        elif stream.fault is None and error is not ENDED_EARLY and entry.attempts.records:
            entry.attempts.records[-1].refused = True  # the upstream sent an error event
        if not self.writer.committed:
            raise UpstreamFailed(error, outcome=outcome, detail=detail)
        entry.ending.outcome = outcome
        if error is INTERNAL_ERROR:
            entry.ending.detail = detail

    async def _abort_after_upstream_error(self, failure: UpstreamFailed) -> None:
        """End the client's stream with an error event; raise if the client has received nothing."""
        self.entry.ending.detail = failure.detail
        if not self.writer.committed:
            if failure.error is self.stream.error:  # an error event in a response with status 200
                failure.error = map_error_paths(failure.error, self.repairs.origins)
            raise failure.copy()
        if self.stream.finished or self.response.complete:
            return
        self.entry.ending.outcome = failure.outcome
        await self.writer.write_events(self.stream.fail(failure.error), last=True)
