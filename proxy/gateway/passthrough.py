"""Anthropic in front, Anthropic behind: bytes are handed on as they came, and read on the way.

Only what must change does: our credential for the client's, the model's name where a route
renames it, and reasoning carriers of ours, which no Anthropic model can read (mapping.md 7).
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import msgspec
from yarl import URL

from translator.dialect import UpstreamError
from translator.errors import BadUpstream
from translator.secret_redaction import masked_shapes, redacted
from translator.sse import SSEDecoder

from .decoding import decode_event, decode_json
from .frames import frames
from .head import Head
from .policies import NONE as NO_POLICIES
from .pump import MAX_ANSWER_BYTES, Attempt, upstream_error
from .refusals import Header, UpstreamFailed
from .upstream import Call
from .watch import Stop

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

MODEL: Final = re.compile(rb'("model"[ \t\r\n]*:[ \t\r\n]*)"[^"\\]*"')
"""The name of the model, or another field called so further inside."""

_encode: Final = msgspec.json.Encoder().encode
_fields_of: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items_of: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Passthrough(Attempt):
    """One Anthropic upstream's try at one request."""

    def translated(self) -> tuple[bytes, dict[str, str]]:
        request, server, head = self.entry.request, self.target.server, self.entry.head
        made = server.dialect.build_request(
            self.permitted(), self.target.for_translator(request["model"])
        )
        self.stream = server.dialect.stream(made.answer)
        self.url = endpoint(server.url, head)
        headers = forwarded(head)
        if server.policies is not NO_POLICIES:
            headers = server.policies.permitted_headers(headers, self.withheld)
        self.noted(made)
        model = self.target.model_for(request["model"])
        wanted = {**made.body, "model": model, **server.extra_body}
        return spliced(self.entry.body, request, wanted), headers

    async def refused(self, call: Call) -> None:
        raw = await call.beginning()
        self.keep(call, raw)
        if call.status == 401:  # our key, not the client's: it must not drop its own
            raise UpstreamFailed(CREDENTIALS_REFUSED, detail="status_401")
        error = upstream_error(self.target, call, raw)
        try:
            body = decode_json(raw)
        except BadUpstream:
            body = None
        anthropic = isinstance(body, dict) and body.get("type") == "error"
        clean = redacted(body)
        raise UpstreamFailed(
            error,
            detail=f"status_{call.status}",
            raw=(raw if clean is body else _encode(clean)) if anthropic else None,
            headers=returned(call, self.consumer.extra_headers),
        )

    async def relay_events(self, call: Call) -> None:
        stream, watch, entry, outlet = self.stream, self.watch, self.entry, self.outlet
        self._take_headers(call)
        decoder = SSEDecoder()
        cutter = FrameCutter()
        streaming = entry.request.get("stream") is True  # else a server streams unasked
        while not stream.finished:
            watch.expect(Stop.IDLE)
            raw = await call.read()
            watch.expect(Stop.WRITE)
            out: list[bytes] = []
            heard: list[dict[str, Any]] = []
            try:
                for piece in cutter.feed(raw) if raw else [cutter.rest]:
                    events, sent = self._heard(decoder, piece, ended=not raw)
                    out += [outlet.dressing(events), sent]
                    heard += events
                    if stream.finished:
                        break
            except BadUpstream:
                entry.read(masked_shapes(raw), watch.since)
                await self.deliver(heard, b"".join(out))  # sound, and before it
                raise
            if raw:  # kept now that it is known whether it holds an error
                entry.read(raw, watch.since)
            else:
                events = stream.end()
                out += [outlet.dressing(events), self._framed(events)]
                heard += events
            await self.deliver(heard, b"".join(out) if streaming else b"")

    def _heard(
        self, decoder: SSEDecoder, piece: bytes, *, ended: bool
    ) -> tuple[list[dict[str, Any]], bytes]:
        """The events of one frame, and the bytes to relay: its own, unless the guard objects.

        ``ended``: the piece is what stood after the last frame. It counts if it is complete.
        """
        told = decoder.feed(piece)
        if ended:
            told += decoder.end()
            piece = piece.rstrip(b"\r\n") + b"\n\n" if told else b""
        events: list[dict[str, Any]] = []
        for name, text in told:
            event = decode_event(name, text)
            follow = self.stream.feed(event)
            named = name in ("message", event.get("type"))  # SDKs look at the name alone
            if len(follow) != 1 or follow[0] is not event or not named:
                piece = b""
            events += follow
        if not piece.isascii() and not _is_text(piece):
            piece = b""
        return events, piece or self._framed(events)

    def _framed(self, events: list[dict[str, Any]]) -> bytes:
        """Events that are ours, not the upstream's: an error names its request."""
        for event in events:
            if event["type"] == "error":
                event["request_id"] = self.entry.head.request_id
        return frames(events)

    async def relay_whole(self, call: Call) -> None:
        self._take_headers(call)
        self.watch.expect(Stop.IDLE)
        raw = await call.whole(MAX_ANSWER_BYTES)
        if raw is None:
            raise BadUpstream("upstream's answer is too large")
        events = self.stream.feed_whole(self.decoded(raw))
        self.entry.read(raw, self.watch.now())
        streaming = self.entry.request.get("stream") is True
        await self.deliver(events, frames(events) if streaming else raw)

    def _take_headers(self, call: Call) -> None:
        self.consumer.extra_headers += [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in returned(call, self.consumer.extra_headers).items()
        ]


def endpoint(url: URL, head: Head) -> URL:
    """The upstream's address with the client's query string, as it came."""
    return URL(f"{url}?{head.query}", encoded=True) if head.query else url


def forwarded(head: Head) -> dict[str, str]:
    """The client's headers that an Anthropic upstream is told, and the version in any case."""
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in head.headers.items()
        if FORWARDED.fullmatch(name)
    }
    headers.setdefault("anthropic-version", head.version)
    return headers


def spliced(raw: bytes, request: dict[str, Any], wanted: dict[str, Any]) -> bytes:
    """The client's bytes with nothing changed but the fields that are ``wanted`` otherwise.

    ``request`` is what the bytes say.
    """
    changed = {
        name: value
        for name, value in wanted.items()
        if name not in request or (value is not request[name] and value != request[name])
    }
    gone = request.keys() - wanted.keys()
    if not changed and not gone:
        return raw
    if changed.keys() == {"model"} and not gone and (renamed := _renamed(raw, wanted["model"])):
        return renamed
    fields: dict[str, Any] = dict(_fields_of(raw))
    for name in gone:
        del fields[name]
    for name, value in changed.items():
        old = request.get(name)
        if isinstance(old, list) and isinstance(value, list) and len(old) == len(value):
            pieces = zip(_items_of(fields[name]), old, value, strict=True)
            fields[name] = [was if a is b or a == b else b for was, a, b in pieces]
        else:
            fields[name] = value
    return _encode(fields)


def _renamed(raw: bytes, model: str) -> bytes:
    """The bytes with another model's name in its place; none where it is hard to find."""
    found = MODEL.search(raw)
    if found is None or MODEL.search(raw, found.end()):
        return b""
    name = _encode(model)
    renamed = raw[: found.end(1)] + name + raw[found.end() :]
    return renamed if bytes(_fields_of(renamed)["model"]) == name else b""


class FrameCutter:
    """Cuts at frame ends; the rest waits for its own end, lest a ping of ours tear it apart."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        return bytes(self._rest)

    def feed(self, raw: bytes) -> list[bytes]:
        """The frames that are whole now. Raises BadUpstream for one that never ends."""
        rest = self._rest
        seen = max(0, len(rest) - 3)  # no end begins before it
        rest += raw
        ends = [0, *(found.end() for found in FRAME_END.finditer(rest, seen))]
        whole = [bytes(rest[start:end]) for start, end in pairwise(ends)]
        del rest[: ends[-1]]
        if len(rest) > MAX_EVENT_BYTES:
            raise BadUpstream("upstream's event is too large")
        return whole


def _is_text(piece: bytes) -> bool:
    """False: a client that decodes the frame would fail, be it for a comment or a name in it."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def returned(call: Call, ours: Iterable[Header]) -> dict[str, str]:
    """What the client is told of the upstream's headers; not what we tell ourselves: ``ours``."""
    taken = {name.decode("latin-1") for name, _ in ours}
    kept = {n: v for n, v in call.headers.items() if RETURNED.fullmatch(n) and n not in taken}
    if "request-id" in call.headers:
        kept["x-upstream-request-id"] = call.headers["request-id"]
    return kept
