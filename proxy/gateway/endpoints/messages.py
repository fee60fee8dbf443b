"""POST /v1/messages: authenticate, parse, admit and relay one request."""

from typing import Any, Final, NamedTuple

import msgspec

from proxy.gateway.admission import budgets
from proxy.gateway.admission.auth import authorise, identify
from proxy.gateway.admission.client_options import ClientOptions
from proxy.gateway.admission.rate_limits import acquire_slot
from proxy.gateway.admission.route_selection import Route, choose_route
from proxy.gateway.http.errors import HttpError
from proxy.gateway.http.request_body import count_values_limited, decode_object, run_in_body_thread
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.request.request import Request
from proxy.gateway.snapshot.config_snapshot import Caller, directory
from proxy.gateway.snapshot.content_policy import filter_unknown_content
from proxy.gateway.snapshot.targets import RequestFacts
from proxy.gateway.upstream.failover import try_targets
from proxy.json_value_limit import VALUE_BYTES
from proxy.ledger.posting.drift import new_name_recorder
from translator.anthropic.request_validation import (
    check_for_routing,
    parse_messages_request,
    unknown_fields,
)
from translator.anthropic.token_estimate import estimate_tokens
from translator.anthropic.validators import MAX_MODEL
from translator.errors import BadRequest

from .http_consumer import StreamingHttpConsumer

JSON: Final = b"application/json"
LARGE_BODY: Final = 2**19
"""Bodies of more bytes than this are parsed in another thread, because parsing on the event loop
delays all streams: by at most 70 ms for a body of this size, by 1 ms for most smaller ones."""


class MessagesConsumer(StreamingHttpConsumer):
    cross_origin = True

    async def handle(self) -> None:
        caller = identify(self.head)
        self.request = Request(self, self.head, caller)
        async with self.request as request:  # leaving the block writes the ledger row
            authorise(caller, self.head)
            self.head.check_names()
            route = await self._read_request(request)
            request.options = ClientOptions.of(self.head, caller)
            if request.options.strict and (unknown := unknown_fields(request.fields)):
                request.rejected_body = request.body
                if caller.team.store_full:
                    new_name_recorder.add_rejected(self.head.request_id, request.body)
                raise BadRequest(unknown[0], "Extra inputs are not permitted")
            slot = await acquire_slot(caller, request.input_estimate, model=request.model)
            try:
                if slot.headers:
                    self.extra_headers += slot.headers
                if caller.budgets and (covering := budgets.covering(caller, request.model)):
                    request.reservation = await budgets.reserve(covering, route, request.planned())
                    request.notes += request.reservation.notes
                await request.accept(route, slot)
                await try_targets(request, route)
            finally:
                slot.release()

    async def _read_request(self, request: Request) -> Route:
        """Read and parse the body; return its route.

        This is a separate function, because the frame of a longer-running function would keep the
        body in memory.
        """
        caller = request.caller
        body = await self.read_body()
        try:
            parsed = await parse_body(self, caller, body, parse_messages_request)
            if parsed.fault is None:
                request.set_body(body, parsed.fields, parsed.input_estimate)
            session = request.session_of(parsed.fields)
            route = choose_route_of(self.head, caller, body, parsed, session)
        except BadRequest:
            # A query of the ledger by model then also finds this error.
            request.model = _parse_model_name(body)
            request.rejected_body = body
            raise
        if parsed.fault is not None:
            request.set_body(body, parsed.fields, parsed.input_estimate, parsed.fault)
        return route


class _ModelOnly(msgspec.Struct):
    model: str = ""


def _parse_model_name(body: bytes) -> str:
    """Return the model named in a rejected body; empty if it is unreadable or the body is large."""
    try:
        model = msgspec.json.decode(body, type=_ModelOnly).model if len(body) <= LARGE_BODY else ""
        return model[:MAX_MODEL]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


class ParsedBody(NamedTuple):
    """A decoded request body."""

    fields: dict[str, Any]
    fault: BadRequest | None
    """Why the body cannot be translated; an Anthropic upstream may accept it all the same, because
    it may know newer fields, blocks and values."""
    input_estimate: int
    """The input tokens by ``estimate_tokens``: one estimate for all who need one."""


def choose_route_of(
    head: RequestHeaders, caller: Caller, body: bytes, parsed: ParsedBody, session: str = ""
) -> Route:
    """Return the route of a request: of a faulty one only the targets that do not translate.

    Raises the fault if there are none, and the errors of ``choose_route``.
    """
    client = " ".join(head.client).strip()
    facts = RequestFacts(parsed.input_estimate, client, head.headers)
    try:
        route = choose_route(caller, parsed.fields["model"], session, facts)
    except HttpError:
        if parsed.fault is None:
            raise
    else:
        if parsed.fault is None:
            return route
        native = tuple(one for one in route.targets if one.server.dialect_name == "anthropic")
        if native:
            return Route(route.name, native)
    if caller.team.store_full:
        new_name_recorder.add_rejected(head.request_id, body)
    raise parsed.fault


async def parse_body(
    consumer: StreamingHttpConsumer, caller: Caller, body: bytes, parse: Any
) -> ParsedBody:
    """Decode and validate a request body.

    Raises BadRequest if the body is not a JSON object that names a model, and HttpError with status
    415 or 529.
    """
    head = consumer.head
    if head.headers.get(b"content-type", JSON) != JSON:
        kind = head.text(b"content-type").partition(";")[0].strip().lower()
        if kind not in {"", "application/json", "text/plain"}:
            raise HttpError(
                415,
                "invalid_request_error",
                f"content-type is {kind[:80]!r}; send 'application/json'",
            )
    if len(body) <= LARGE_BODY:
        values = count_values_limited(body)
        consumer.reserve_memory(len(body) + VALUE_BYTES * values)
        return _decode_and_validate(head, caller, body, parse)
    values = await run_in_body_thread(count_values_limited, body)
    consumer.reserve_memory(len(body) + VALUE_BYTES * values)
    return await run_in_body_thread(_decode_and_validate, head, caller, body, parse)


def _decode_and_validate(
    head: RequestHeaders, caller: Caller, body: bytes, parse: Any
) -> ParsedBody:
    """Decode and validate a body.

    Blocks and roles that some upstream policy allows are not validated. ``Policies.filter_request``
    checks these later, for the upstream that is chosen.
    """
    request = decode_object(body)
    policies = directory.snapshot.content_rules
    checked = request
    fault = None
    try:
        if policies.rules:
            checked = filter_unknown_content(request, policies.allows_unknown)
        parse(checked, version=head.client_info.version)
    except BadRequest as exc:
        fault = exc.with_traceback(None)  # frames would keep the body in memory
        fault.__context__ = None
    if fault is not None:
        try:
            check_for_routing(request)
        except BadRequest:
            if caller.team.store_full:
                new_name_recorder.add_rejected(head.request_id, body)
            raise fault from None
    return ParsedBody(request, fault, estimate_tokens(request))
