"""One attempt to answer a request: call an upstream, translate its response, send it to the client.

The relay loop runs once for each read from the upstream and sends the translated events in one
write. It also updates the records for the ledger.
"""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, cast

import msgspec

from proxy.conf import conf
from proxy.gateway.http.deadlines import TIMEOUTS, CancelReason
from proxy.gateway.http.error_log import log_non_json_response
from proxy.gateway.http.errors import SHUTTING_DOWN, STOPPED, UpstreamFailed
from proxy.gateway.http.lenient_json import decode_event, decode_json
from proxy.gateway.http.request_headers import matching_headers
from proxy.gateway.request.attempts import AttemptRecord
from proxy.gateway.request.request import Request
from proxy.gateway.request.session_calls import load_calls, save_calls
from proxy.gateway.snapshot.targets import Target
from proxy.gateway.snapshot.upstream_policies import NO_POLICIES
from translator.anthropic.token_estimate import estimate_tokens
from translator.anthropic.usage import Usage
from translator.anthropic_upstream.stream import ENDED_EARLY
from translator.dialect import ResponseContext, Stream, TextStream, UpstreamError
from translator.errors import BadRequest, BadUpstream
from translator.message_stream.response_stream import INTERNAL_ERROR
from translator.notes import Note
from translator.request.body_edits import apply_lessons
from translator.request.retry_repairs import REFUSAL_STATUSES, REPAIRABLE
from translator.secret_redaction import mask_secrets
from translator.stream.sse import SSEDecoder
from translator.upstream_errors import map_error_paths

from .client import (
    ERROR_BODY_BYTES,
    UNDELIVERED,
    UpstreamResponse,
    bad_gateway_error,
    map_rate_limit_headers,
    post,
    replace_expired,
    upstream_error,
)
from .documents import PdfText, load_pdf_texts, with_pdf_texts, with_texts_of_files
from .model_memory import MAX_REPAIRS, RequestRepairs, memory
from .response_decoder import ResponseDecoder
from .response_writers import CONTENT, ResponseWriter

MAX_ANSWER_BYTES: Final = 64 * 2**20
EVENT_STREAM: Final = ("text/event-stream", "text/event-stream; charset=utf-8")
"""The usual values of ``content-type`` for SSE. They are compared without parsing."""

NO_STATUS: Final = 400
"""The status with which an error event is read that has none, or one that would hide a refusal."""
ILLEGAL: Final = "illegal_move"
"""The ``detail`` in the ledger of a response that ended because of a bug in the translator."""
DRAIN_S: Final = 0.1
"""How long to wait for the end of the body after the last event, so that the connection can be
reused."""

log = logging.getLogger("proxy.gateway")
_encode: Final = msgspec.json.Encoder().encode


class Attempt:
    """One attempt to answer a request by calling one target."""

    def __init__(self, target: Target, request: Request, writer: ResponseWriter) -> None:
        self.target = target
        self.server = target.server
        self.request = request
        self.attempts = request.attempts
        self.writer = writer
        self.response = request.response
        self.watch = request.response.deadlines
        self.strict = request.options.strict
        self.url = target.server.url
        self.stream: Stream
        # the upstream's request body; freed when the response begins, as it may have 400 KB
        self.body = b""
        # whether the next call continues the client's message, after web searches
        self.continues = False
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
        request = self.request
        self.attempts.recorded_calls = await load_calls(request, self.target)
        self.pdf_texts = await load_pdf_texts(
            request.body, request.fields, self.target, request.caller.team.id
        )
        self.body, headers = self.build_upstream_request()
        await request.wait_until_recorded()  # the record must be on the disk first
        if self.attempts.is_last_target:  # no further attempt needs the client's body
            request.release_body()
        try:
            if self.known_answer is not None:
                await self.deliver(self.stream.feed_body(self.known_answer))
            else:
                await self.send_with_repairs(headers)
        except BadUpstream as exc:
            await self._abort_after_upstream_error(
                UpstreamFailed(bad_gateway_error(str(exc)), detail="bad_event")
            )
        except UpstreamFailed as exc:
            await self._abort_after_upstream_error(exc)
        except asyncio.CancelledError:
            failure = self._cancellation_error()
            if failure is None:
                raise  # the client is gone or has received nothing: the caller handles it
            self.response.clear_cancellation()
            await self._abort_after_upstream_error(failure)

    def _cancellation_error(self) -> UpstreamFailed | None:
        """Return the error to send after the request was cancelled; None: re-raise."""
        reason = self.response.cancel_reason
        if reason in TIMEOUTS:
            message = "the upstream took too long to answer"
            if reason is CancelReason.IDLE:
                message = "the upstream fell silent in the middle of its answer"
            error = UpstreamError(status=504, error_type="timeout_error", message=message)
            return UpstreamFailed(error, outcome="upstream_timeout", detail=reason.value)
        if reason is None and self.writer.committed:
            return UpstreamFailed(SHUTTING_DOWN, outcome="drained")
        if reason is CancelReason.STOPPED and self.writer.committed:
            return UpstreamFailed(STOPPED, outcome="refused", detail=reason.value)
        return None

    # The request to the upstream

    def build_upstream_request(self) -> tuple[bytes, dict[str, str]]:
        """Return the upstream's request body and extra headers.

        Also set ``stream`` and record notes.
        """
        server, request = self.server, self.request
        # The upstream always streams, so there is only one code path.
        fields = with_pdf_texts(self.translatable_request(), self.pdf_texts, self.withheld)
        if self.pdf_texts:  # a text has other tokens than the pages of which it was read
            request.input_estimate = estimate_tokens(fields)
        fields = {**fields, "stream": True}
        target = self.target.for_translator(request.model, request.session_id)
        target.recorded_calls = self.attempts.recorded_calls
        self.url = server.url_for(target.model)
        upstream_request = server.dialect.build_request(fields, target)
        body = {**upstream_request.body, **server.extra_body}
        body, notes, self.repairs.origins = apply_lessons(
            body, memory.lessons(server, target.model), upstream_request.origins
        )
        self.record_translation_notes([*upstream_request.notes, *notes])
        self.known_answer = upstream_request.local_response
        context = self.context = upstream_request.response_context
        context.message_id = f"msg_{request.head.ulid}"
        context.finished_blocks = request.options.blocks
        context.whole = not request.streaming
        context.input_estimate = context.input_estimate or request.input_estimate
        self.stream = self.attempts.stream = self.open_stream(context)
        return _encode(body), {}

    def translatable_request(self) -> dict[str, Any]:
        """Return the request to translate for the next call of the upstream."""
        return self.apply_upstream_policies()

    def open_stream(self, context: ResponseContext) -> Stream:
        """Return the stream that translates the next response."""
        return self.server.dialect.stream(context)

    def apply_upstream_policies(self) -> dict[str, Any]:
        """Return the client's request without the content that the upstream's policies drop."""
        self.withheld = []
        policies = self.server.policies
        if policies is NO_POLICIES:
            return self.request.fields
        client = " ".join(self.request.head.client).strip()
        return policies.filter_request(self.request.fields, self.withheld, client)

    def record_translation_notes(self, notes: Sequence[Note]) -> None:
        self.attempts.notes = [*self.withheld, *notes]
        if self.strict and not self.continues:  # it is about the client's own request
            for note in self.attempts.notes:
                if note.lossy:
                    raise BadRequest(note.path, f"cannot be translated without loss: {note.reason}")

    # The calls of the upstream

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
        call = await self._post(headers)
        # A second time with another credential if the upstream says that a token expired.
        if self.response.bytes_at_disconnect is None and await replace_expired(
            self.server.credential, call
        ):
            call.record.refused = True
            call.close()
            call = await self._post(headers)
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
                self.attempts.late_usage = await self._read_late_usage(call)
            self.watch.wait = None
            if not call.connection.response_complete:
                # Discard the rest of the body, so that the connection can be reused.
                try:
                    async with asyncio.timeout(DRAIN_S):
                        while not call.ended and await call.read():
                            pass
                except (TimeoutError, UpstreamFailed):
                    pass  # the connection is closed
        finally:
            call.close()
        return False

    async def _post(self, headers: dict[str, str]) -> UpstreamResponse:
        """Send the body to the upstream; retry once if the upstream cannot have received it."""
        if not self.continues:  # a later call of a message has what is left of the total time
            self.watch.begin(
                self.server.timeouts,
                conf.write_timeout_s,
                self._tick,
                conf.ping_interval_s,
                conf.first_event_wait_s,
            )
        self.attempts.body_digest = hashlib.sha256(self.body).hexdigest()
        try:
            call = await self._post_once(headers)
        except UpstreamFailed as exc:
            if exc.detail != UNDELIVERED or self.response.bytes_at_disconnect is not None:
                raise
            call = await self._post_once(headers)
        self.attempts.upstream_request_id = call.request_id
        response = self.response
        response.extra_headers = map_rate_limit_headers(response.extra_headers, call.headers)
        return call

    def _post_once(self, headers: dict[str, str]) -> Coroutine[Any, Any, UpstreamResponse]:
        """Return a coroutine that calls the upstream. It must be awaited at once."""
        server, request = self.server, self.request
        model = self.target.model_for(request.model)
        record = AttemptRecord(server.name, model, self.watch.now())
        request.attempt_started(record, self.target, self.stream, continues=self.continues)
        if server.forwarded_headers is not None:
            headers = matching_headers(request.head.headers, server.forwarded_headers) | headers
        if request.trace is not None:
            headers = headers | request.trace.start_attempt_span(self.target, request.fields, model)
        self.watch.wait, self.watch.since = CancelReason.FIRST_BYTE, record.at
        return post(
            server, self.url, self.body, headers, record,
            loop=self.watch.loop, key_id=request.caller.key_id,
        )  # fmt: skip

    def _tick(self, now: float) -> None:
        self.writer.tick(now)
        self.request.tick(now)

    async def _read_late_usage(self, call: UpstreamResponse) -> Usage | None:
        """Read the upstream's body to its end; return the usage reported there, or None.

        This is for a response that the gateway ended early at a stop sequence, which is in
        ``last_read``. Only events with usage are translated, by a new stream that has not seen the
        earlier events.
        """
        stream, decoder = self.server.dialect.stream(ResponseContext()), SSEDecoder()
        raw = self.last_read
        try:
            while raw and not stream.finished:
                for name, text in decoder.feed(raw):
                    if b'"usage"' not in text:
                        continue
                    event = decode_event(name, text)
                    response = event.get("response")
                    if event.get("usage") or (isinstance(response, dict) and response.get("usage")):
                        stream.feed(event)
                self.watch.start_wait(CancelReason.IDLE)
                raw = await call.read()
        except (BadUpstream, UpstreamFailed):
            pass  # the stream broke off, so the estimated usage stays
        return stream.usage if stream.usage.source == "reported" else None

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
            self.body = await with_texts_of_files(refused, self.request.caller.team.id)
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
        notes = self.attempts.notes
        body = await self.repairs.apply(self.body, status, refusal, notes, strict=self.strict)
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
            error = dataclasses.replace(error, message=f"model: {self.request.model[:200]}")
        answers = self.server.profile.refused_prompt == "answer"
        if error.is_refusal and answers:  # sent with the stop_reason "refusal"
            events = self.stream.feed_body(decode_json(raw))
            if self.stream.error is None:
                return await self.deliver(events)
        raise UpstreamFailed(error, detail=f"status_{call.status}")

    def store_error_body(self, call: UpstreamResponse, raw: bytes) -> None:
        """Store the body of an upstream's error in the transcript. It is not logged."""
        log_non_json_response(self.server.name, call.status, raw)
        if raw:
            self.request.store_upstream_bytes(mask_secrets(raw), self.watch.now())

    # The response

    @property
    def response_finished(self) -> bool:
        """Whether the upstream's response has ended. The client's message may continue."""
        return self.stream.finished

    async def relay_events(self, call: UpstreamResponse) -> None:
        """The relay loop: read, decode, translate and send until the response ends."""
        stream, watch, request = self.stream, self.watch, self.request
        # ``Passthrough`` relays Anthropic's events; all other dialects have a ``TextStream``.
        decoder = ResponseDecoder(cast("TextStream", stream), self.server.dialect_name)
        while not self.response_finished:
            watch.start_wait(CancelReason.IDLE)
            raw = await call.read()
            watch.start_wait(CancelReason.WRITE)
            try:
                decoder.feed(raw)
            except BadUpstream:
                request.store_upstream_bytes(mask_secrets(raw), watch.since)
                await self.deliver(decoder.events)  # only the valid events before the invalid one
                raise
            if raw:
                # stored after decoding, which shows whether the bytes are an error
                request.store_upstream_bytes(raw, watch.since)
            if stream.finished and request.has_hard_budget:
                self.last_read = raw
            del raw  # this frees memory before the next wait
            await self.deliver(decoder.events)

    async def relay_json(self, call: UpstreamResponse) -> None:
        self.watch.start_wait(CancelReason.IDLE)
        raw = await call.read_all(MAX_ANSWER_BYTES)
        if raw is None:
            raise BadUpstream("upstream's answer is too large")
        events = self.stream.feed_body(self._decode_answer(raw))
        self.request.store_upstream_bytes(raw, self.watch.now())
        await self.deliver(events, self.relayed_json(events, raw))

    def relayed_json(self, events: list[dict[str, Any]], raw: bytes) -> bytes | None:
        """Return the bytes to send for a JSON response; None: the encoded events."""
        return None

    def _decode_answer(self, raw: bytes) -> dict[str, Any]:
        """Decode a JSON response. Store what is no answer, with masked credentials, and raise."""
        try:
            value = decode_json(raw)
        except BadUpstream as exc:
            fault: Exception = exc
        else:
            if isinstance(value, dict):
                return value
            fault = UpstreamFailed(self.server.dialect.map_error(502, value))
        self.request.store_upstream_bytes(mask_secrets(raw[:ERROR_BODY_BYTES]), self.watch.now())
        raise fault

    async def deliver(self, events: list[dict[str, Any]], raw: bytes | None = None) -> None:
        """Send events to the client.

        Raises UpstreamFailed if the stream failed before the client received anything. ``raw``: the
        upstream's own bytes, to send in place of encoded events.
        """
        if self.stream.error is not None:
            self._record_stream_error(self.stream.error)
        last = self.stream.finished
        if last and self.stream.call_records:  # before the client can send its next request
            await save_calls(self.request, self.target, self.stream)
        if events or raw or last:
            is_answered = raw or last or any(event["type"] in CONTENT for event in events)
            if self.body and is_answered:  # the upstream has accepted the body
                self.body = b""
                self.repairs.remember(self.target.model_for(self.request.model))
            await self.writer.write_events(events, last=last, raw=raw)

    def _record_stream_error(self, error: UpstreamError) -> None:
        """Record the error that ended the stream.

        Raise UpstreamFailed if the client has received nothing.
        """
        stream, request = self.stream, self.request
        outcome, detail = "upstream_error", "bad_event" if stream.fault is not None else ""
        if error is INTERNAL_ERROR:
            log.error("the translator broke the grammar of the stream", exc_info=stream.fault)
            stream.unknown.add(ILLEGAL)
            outcome, detail = "gateway_error", ILLEGAL
        elif stream.fault is None and error is not ENDED_EARLY and request.attempts.records:
            request.attempts.records[-1].refused = True  # the upstream sent an error event
        if not self.writer.committed:
            raise UpstreamFailed(error, outcome=outcome, detail=detail)
        request.outcome = outcome
        if error is INTERNAL_ERROR:
            request.detail = detail

    async def _abort_after_upstream_error(self, failure: UpstreamFailed) -> None:
        """End the client's stream with an error event; raise if the client has received nothing."""
        self.request.detail = failure.detail
        if not self.writer.committed:
            if failure.error is self.stream.error:  # an error event in a response with status 200
                failure.error = map_error_paths(failure.error, self.repairs.origins)
            raise failure.copy()
        if self.stream.finished or self.response.complete:
            return
        self.request.outcome = failure.outcome
        await self.writer.write_events(self.stream.fail(failure.error), last=True)
