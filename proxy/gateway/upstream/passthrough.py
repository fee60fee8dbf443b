"""Passthrough to an Anthropic upstream: relay the bytes unchanged, and parse them for the ledger.

Without policies, only three things in the request change: the credential, the model's name if the
route renames it, and thinking blocks with the gateway's own signature, which an Anthropic model
cannot read.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import msgspec
from yarl import URL

from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.errors import Header, UpstreamFailed
from proxy.gateway.http.lenient_json import decode_event, decode_json
from proxy.gateway.http.request_headers import RequestHeaders, matching_headers
from proxy.gateway.http.sse_encoder import encode_events
from proxy.gateway.snapshot.upstream_policies import NO_POLICIES
from translator.anthropic_upstream.bedrock_events import CONTENT_TYPE as EVENT_STREAM
from translator.anthropic_upstream.bedrock_events import BedrockEvents
from translator.anthropic_upstream.stream import AnthropicStream
from translator.dialect import UpstreamError
from translator.errors import BadUpstream
from translator.notes import Note
from translator.secret_redaction import mask_secrets, redact_error_body
from translator.stream.sse import SSEDecoder
from translator.upstream_errors import read_error

from .attempt import MAX_ANSWER_BYTES, Attempt
from .client import UpstreamResponse
from .cloud_requests import as_cloud_request
from .error_responses import upstream_error
from .model_memory import adapt_body

FRAME_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
FORWARDED: Final = re.compile(
    rb"anthropic-.+|x-stainless-.+|x-claude-code-.+|user-agent|accept|x-app"
)
MAX_EVENT_BYTES: Final = 16 * 2**20
RETURNED: Final = re.compile(r"anthropic-(?!organization).+|x-should-retry")
CREDENTIALS_REFUSED: Final = UpstreamError(
    status=500,
    error_type="api_error",
    message="upstream credentials refused",
    should_retry=False,
)

BETA_REFUSED: Final = re.compile(
    r"anthropic[-_]beta|\b(?:invalid|unknown|unsupported|unrecogni[sz]ed) beta\b", re.IGNORECASE
)
"""Texts about a beta: of Anthropic's API behind Vertex and proxies, and of Bedrock."""
MAX_BETA: Final = 128

MODEL: Final = re.compile(rb'("model"[ \t\r\n]*:[ \t\r\n]*)"[^"\\]*"')
"""A field ``model`` in JSON, at the top level or nested."""

_encode: Final = msgspec.json.Encoder().encode
_fields_of: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items_of: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Passthrough(Attempt):
    """One attempt to answer a request by calling an Anthropic upstream."""

    headers: dict[str, str]  # of the calls; a repair may change them

    def build_upstream_request(self) -> tuple[bytes, dict[str, str]]:
        request, server, head = self.entry.request.fields, self.target.server, self.entry.headers
        upstream_request = server.dialect.build_request(
            self.apply_upstream_policies(), self.target.for_translator(request["model"])
        )
        context = upstream_request.response_context
        context.message_id = f"msg_{head.ulid}"  # for an upstream that sends none
        context.input_estimate = self.entry.request.input_estimate
        context.whole = not self.entry.request.streaming
        self.stream = server.dialect.stream(context)
        model = self.target.model_for(request["model"])
        self.url = server.url_for(model, streaming=self.entry.request.streaming)
        if server.cloud is None or not server.cloud.version:
            self.url = endpoint(self.url, head)
        headers = forwarded_headers(head)
        if server.policies is not NO_POLICIES:
            headers = server.policies.permitted_headers(headers, self.withheld)
        target_fields = {**upstream_request.body, "model": model, **server.extra_body}
        target_fields, notes, _ = adapt_body(target_fields, server, model)
        target_fields, headers = as_cloud_request(server, target_fields, headers, self.withheld)
        self.record_translation_notes([*upstream_request.notes, *notes])
        self.headers = headers
        return patch_body(self.entry.request.body, request, target_fields), headers

    async def _apply_repair(self, status: int, refusal: Any) -> bool:
        """Repair the body, or the betas: other servers than Anthropic's know only some of them."""
        if not self.options.strict and self._drop_refused_betas(refusal):
            return True
        return await super()._apply_repair(status, refusal)

    def _drop_refused_betas(self, refusal: Any) -> bool:
        """Drop the betas that the upstream's error names, or all; return whether any was dropped.

        Nothing is remembered, because the names are the client's: a policy of the upstream can drop
        them always.
        """
        sent = [name.strip() for name in self.headers.get("anthropic-beta", "").split(",")]
        is_own = self.target.server.profile.name == "anthropic"
        text = "" if is_own or not any(sent) else read_error(refusal).message
        if BETA_REFUSED.search(text) is None:
            return False
        refused = [name for name in sent if name in text] or sent
        kept = [name for name in sent if name not in refused]
        self.headers.pop("anthropic-beta")
        if kept:
            self.headers["anthropic-beta"] = ",".join(kept)
        self.entry.attempts.notes += [
            Note("anthropic-beta", "dropped", f"the upstream refused {name[:MAX_BETA]}")
            for name in refused
        ]
        return True

    async def handle_error_status(self, call: UpstreamResponse) -> None:
        raw = await call.read_error_body()
        self.store_error_body(call, raw)
        if call.status == 401:  # the gateway's key for the upstream is wrong, not the client's key
            raise UpstreamFailed(CREDENTIALS_REFUSED, detail="status_401")
        error = upstream_error(self.target, call, raw)
        try:
            body = decode_json(raw)
        except BadUpstream:
            body = None
        anthropic = isinstance(body, dict) and body.get("type") == "error"
        clean = redact_error_body(body)
        raise UpstreamFailed(
            error,
            detail=f"status_{call.status}",
            raw=(raw if clean is body else _encode(clean)) if anthropic else None,
            headers=returned_headers(call, self.response.extra_headers),
        )

    async def relay_events(self, call: UpstreamResponse) -> None:
        stream, watch, entry, writer = self.stream, self.watch, self.entry, self.writer
        self._copy_response_headers(call)
        decoder = SSEDecoder()
        splitter = FrameSplitter()
        # This is false if the upstream streams although the request has no ``"stream": true``.
        streaming = entry.request.streaming
        framed = BedrockEvents() if call.content_type == EVENT_STREAM else None
        while not stream.finished:
            watch.start_wait(CancelReason.IDLE)
            raw = await call.read()
            watch.start_wait(CancelReason.WRITE)
            if framed is not None and raw:
                raw = framed.feed(raw)
                if not raw:  # no frame is complete yet
                    continue
            out: list[bytes] = []
            seen_events: list[dict[str, Any]] = []
            try:
                for piece in splitter.feed(raw) if raw else [splitter.rest]:
                    events, sent = self._relay_frame(decoder, piece, ended=not raw)
                    out += [writer.metadata_before(events), sent]
                    seen_events += events
                    if stream.finished:
                        break
            except BadUpstream:
                entry.store_upstream_bytes(mask_secrets(raw), watch.since)
                # These are the valid events before the invalid one.
                await self.deliver(seen_events, b"".join(out))
                raise
            if raw:  # this follows parsing, which shows whether the bytes are an error
                entry.store_upstream_bytes(raw, watch.since)
            else:
                events = stream.end()
                out += [writer.metadata_before(events), self._encode_own_events(events)]
                seen_events += events
            await self.deliver(seen_events, b"".join(out) if streaming else b"")

    def _relay_frame(
        self, decoder: SSEDecoder, piece: bytes, *, ended: bool
    ) -> tuple[list[dict[str, Any]], bytes]:
        """Return the events of an SSE frame, and the bytes to relay: the frame unless invalid.

        ``ended``: the response has ended, and ``piece`` is the rest after the last complete frame.
        It is relayed if it contains a complete event.
        """
        parsed = decoder.feed(piece)
        if ended:
            parsed += decoder.end()
            piece = piece.rstrip(b"\r\n") + b"\n\n" if parsed else b""
        events: list[dict[str, Any]] = []
        for name, text in parsed:
            event = decode_event(name, text)
            follow = self.stream.feed(event)
            is_named = name == event.get("type")  # SDKs skip a frame without the field ``event``
            if len(follow) != 1 or follow[0] is not event or not is_named:
                piece = b""
            events += follow
        if not piece.isascii() and not _is_text(piece):
            piece = b""
        return events, piece or self._encode_own_events(events)

    def _encode_own_events(self, events: list[dict[str, Any]]) -> bytes:
        """Encode events to relay instead of the upstream's bytes; add the request id to errors."""
        for event in events:
            if event["type"] == "error":
                event["request_id"] = self.entry.headers.request_id
        return encode_events(events)

    async def relay_json(self, call: UpstreamResponse) -> None:
        self._copy_response_headers(call)
        self.watch.start_wait(CancelReason.IDLE)
        raw = await call.read_all(MAX_ANSWER_BYTES)
        if raw is None:
            raise BadUpstream("upstream's answer is too large")
        events = self.stream.feed_body(self.decode_answer(raw))
        self.entry.store_upstream_bytes(raw, self.watch.now())
        streaming = self.entry.request.streaming
        is_changed = isinstance(self.stream, AnthropicStream) and self.stream.is_changed
        own = b"" if is_changed else raw
        await self.deliver(events, encode_events(events) if streaming else own)

    def _copy_response_headers(self, call: UpstreamResponse) -> None:
        self.response.extra_headers += [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in returned_headers(call, self.response.extra_headers).items()
        ]


def endpoint(url: URL, head: RequestHeaders) -> URL:
    """Return the upstream's URL with the query string of the client's request."""
    return URL(f"{url}?{head.query}", encoded=True) if head.query else url


def forwarded_headers(head: RequestHeaders) -> dict[str, str]:
    """Return the client's headers to send to the upstream. ``anthropic-version`` is always set."""
    headers = matching_headers(head.headers, FORWARDED)
    headers.setdefault("anthropic-version", head.version)
    return headers


def patch_body(raw: bytes, request: dict[str, Any], target_fields: dict[str, Any]) -> bytes:
    """Return the client's body; change only the fields that differ from ``target_fields``.

    ``raw`` is the body as received, ``request`` is the same body decoded.
    """
    changed = {
        name: value
        for name, value in target_fields.items()
        if name not in request or (value is not request[name] and value != request[name])
    }
    removed = request.keys() - target_fields.keys()
    if not changed and not removed:
        return raw
    if (
        changed.keys() == {"model"}
        and not removed
        and (renamed := _replace_model(raw, target_fields["model"]))
    ):
        return renamed
    fields: dict[str, Any] = dict(_fields_of(raw))
    for name in removed:
        del fields[name]
    for name, value in changed.items():
        old = request.get(name)
        if isinstance(old, list) and isinstance(value, list) and len(old) == len(value):
            pieces = zip(_items_of(fields[name]), old, value, strict=True)
            fields[name] = [was if a is b or a == b else b for was, a, b in pieces]
        else:
            fields[name] = value
    return _encode(fields)


def _replace_model(raw: bytes, model: str) -> bytes:
    """Return the body with another model name; empty if the position of ``model`` is ambiguous."""
    found = MODEL.search(raw)
    if found is None or MODEL.search(raw, found.end()):
        return b""
    name = _encode(model)
    renamed = raw[: found.end(1)] + name + raw[found.end() :]
    return renamed if bytes(_fields_of(renamed)["model"]) == name else b""


class FrameSplitter:
    """Splits a stream at the ends of SSE frames.

    Incomplete frames are buffered, so that no ping is sent in the middle of a frame.
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        return bytes(self._rest)

    def feed(self, raw: bytes) -> list[bytes]:
        """Add a read; return the complete frames. Raises BadUpstream if a frame is too large."""
        rest = self._rest
        seen = max(0, len(rest) - 3)  # earlier bytes cannot contain a frame end
        rest += raw
        ends = [0, *(found.end() for found in FRAME_END.finditer(rest, seen))]
        frames = [bytes(rest[start:end]) for start, end in pairwise(ends)]
        del rest[: ends[-1]]
        if len(rest) > MAX_EVENT_BYTES:
            raise BadUpstream("upstream's event is too large")
        return frames


def _is_text(piece: bytes) -> bool:
    """Return whether the frame is valid UTF-8. Clients cannot decode any other frame."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def returned_headers(call: UpstreamResponse, own: Iterable[Header]) -> dict[str, str]:
    """Return the upstream's response headers to send to the client, except those in ``own``."""
    taken = {name.decode("latin-1") for name, _ in own}
    returned = {n: v for n, v in call.headers.items() if RETURNED.fullmatch(n) and n not in taken}
    if "request-id" in call.headers:
        returned["x-upstream-request-id"] = call.headers["request-id"]
    return returned
