"""POST /v1/messages: an Anthropic request in, an Anthropic answer out."""

from typing import Any, Final

import msgspec

from proxy.json_bounds import VALUE_BYTES
from proxy.record.drift import radar
from translator.anthropic.request import parse_messages_request, unknown_fields
from translator.anthropic.shapes import MAX_MODEL
from translator.errors import BadRequest

from . import budgets, idempotency
from .answer import answer
from .auth import authorise, identify
from .base import StreamingHttpConsumer
from .body_memory import in_turn
from .directory import Caller, directory
from .head import Head
from .ledger import Exchange
from .refusals import Refusal
from .routes import choose_route
from .safejson import counted, decode_object
from .shared_limits import take_seat
from .sieve import judged
from .wishes import Wishes

JSON: Final = b"application/json"
KEY: Final = b"idempotency-key"
LARGE_BODY: Final = 2**19
"""Bytes from which on a body is parsed beside the event loop, where it would delay all streams: a
smaller one delays them by 70 ms at worst, most by one."""


class MessagesConsumer(StreamingHttpConsumer):
    async def handle(self) -> None:
        caller = identify(self.head)
        async with Exchange(self, caller) as entry:  # one row, whatever happens below
            authorise(caller, self.head)
            self.head.check_names()
            await self._receive(entry)
            entry.wishes = Wishes.of(self.head, caller)
            if entry.wishes.strict:
                _check_fields(entry)
            if KEY in self.head.headers and (name := idempotency.wanted(entry)):
                await idempotency.once(entry, name, lambda: self._serve(entry))
            else:
                await self._serve(entry)

    async def _receive(self, entry: Exchange) -> None:
        """A frame of its own: one that lives as long as the answer would keep the body."""
        body = await self.read_body()
        try:
            request = await parsed(self, entry.caller, body, parse_messages_request)
        except BadRequest:
            entry.model = _model_of(body)  # whoever looks for a model's errors must find this one
            entry.faulty = body
            raise
        entry.received(body, request)

    async def _serve(self, entry: Exchange) -> None:
        caller = entry.caller
        route = choose_route(caller, entry.model, entry.session_id)
        seat = await take_seat(caller, entry.input_estimate)
        try:
            if seat.headers:
                self.extra_headers += seat.headers
            if caller.budgets:
                await budgets.reserve(entry, route)
            await entry.accept(route, seat)
            await answer(entry, route)
        finally:
            seat.leave()


class _Named(msgspec.Struct):
    model: str = ""


def _model_of(body: bytes) -> str:
    """The model that a refused body names; empty where it cannot be read, or not at once."""
    try:
        model = msgspec.json.decode(body, type=_Named).model if len(body) <= LARGE_BODY else ""
        return model[:MAX_MODEL]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


async def parsed(
    consumer: StreamingHttpConsumer, caller: Caller, body: bytes, parse: Any
) -> dict[str, Any]:
    """The checked request in a body; raises BadRequest, or Refusal 415 or 529."""
    head = consumer.head
    if head.headers.get(b"content-type", JSON) != JSON:
        kind = head.text(b"content-type").partition(";")[0].strip().lower()
        if kind not in {"", "application/json", "text/plain"}:
            raise Refusal(415, "invalid_request_error", f"content-type is {kind[:80]!r}; send JSON")
    if len(body) <= LARGE_BODY:
        consumer.hold(len(body) + VALUE_BYTES * counted(body))
        return _parsed(head, caller, body, parse)
    consumer.hold(len(body) + VALUE_BYTES * await in_turn(counted, body))
    return await in_turn(_parsed, head, caller, body, parse)


def _parsed(head: Head, caller: Caller, body: bytes, parse: Any) -> dict[str, Any]:
    """What rules of an upstream let in is judged there: by ``Policies.permitted``."""
    request = decode_object(body)
    admitted = directory.snapshot.admitted
    try:
        told = judged(request, admitted.admits) if admitted.rules else request
        parse(told, version=head.about.version)
    except BadRequest:
        if caller.team.store_full:
            radar.refused(head.request_id, body)
        raise
    return request


def _check_fields(entry: Exchange) -> None:
    """Strict mode refuses unknown fields in Anthropic's own words."""
    if unknown := unknown_fields(entry.request):
        entry.faulty = entry.body
        if entry.caller.team.store_full:
            radar.refused(entry.head.request_id, entry.body)
        raise BadRequest(unknown[0], "Extra inputs are not permitted")
