"""The calls of an upstream for one attempt, with a valid credential and over a live connection."""

import hashlib
from collections.abc import Coroutine
from typing import Any

from proxy.conf import conf
from proxy.gateway.exchange.attempt_record import AttemptRecord
from proxy.gateway.exchange.request_context import RequestContext
from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.http.rate_limit_headers import map_rate_limit_headers
from proxy.gateway.http.request_headers import matching_headers
from proxy.gateway.snapshot.targets import Target
from translator.dialect import Stream

from .client import UNDELIVERED, UpstreamResponse, post, replace_expired
from .response_writers import ResponseWriter


class AttemptCalls:
    """Sends the body of an attempt to its target, and records each call."""

    def __init__(self, target: Target, entry: RequestContext, writer: ResponseWriter) -> None:
        self.target = target
        self.entry = entry
        self.writer = writer
        self.response = entry.response
        self.watch = entry.response.deadlines
        self.url = target.server.url
        self.stream: Stream
        # the upstream's request body; freed when the response begins, as it may have 400 KB
        self.body = b""
        # whether the next call continues the client's message, after web searches
        self.continues = False

    async def post_with_valid_credential(self, headers: dict[str, str]) -> UpstreamResponse:
        """Send the body to the upstream; once more if the upstream says that a token expired."""
        call = await self._post_once_or_twice(headers)
        if self.response.bytes_at_disconnect is not None:
            return call
        if not await replace_expired(self.target.server.credential, call):
            return call
        call.record.refused = True
        call.close()
        return await self._post_once_or_twice(headers)

    async def _post_once_or_twice(self, headers: dict[str, str]) -> UpstreamResponse:
        """Send the body to the upstream; retry once if the upstream cannot have received it."""
        if not self.continues:  # a later call of a message has what is left of the total time
            self.watch.begin(
                self.target.server.timeouts,
                conf.write_timeout_s,
                self._tick,
                conf.ping_interval_s,
                conf.first_event_wait_s,
            )
        self.entry.attempts.body_digest = hashlib.sha256(self.body).hexdigest()
        try:
            call = await self._post(headers)
        except UpstreamFailed as exc:
            if exc.detail != UNDELIVERED or self.response.bytes_at_disconnect is not None:
                raise
            call = await self._post(headers)
        self.entry.attempts.upstream_request_id = call.request_id
        answer = self.response
        answer.extra_headers = map_rate_limit_headers(answer.extra_headers, call.headers)
        return call

    def _post(self, headers: dict[str, str]) -> Coroutine[Any, Any, UpstreamResponse]:
        """Return a coroutine that calls the upstream. It must be awaited at once."""
        server = self.target.server
        model = self.target.model_for(self.entry.request.model)
        record = AttemptRecord(server.name, model, self.watch.now())
        self.entry.attempt_started(record, self.target, self.stream, continues=self.continues)
        if server.forwarded_headers is not None:
            client_headers = self.entry.headers.headers
            headers = matching_headers(client_headers, server.forwarded_headers) | headers
        if self.entry.trace is not None:
            headers = headers | self.entry.trace.start_attempt_span(
                self.target, self.entry.request.fields, model
            )
        self.watch.wait, self.watch.since = CancelReason.FIRST_BYTE, record.at
        return post(
            server, self.url, self.body, headers, record,
            loop=self.watch.loop, key_id=self.entry.caller.key_id,
        )  # fmt: skip

    def _tick(self, now: float) -> None:
        self.writer.tick(now)
        self.entry.tick(now)
