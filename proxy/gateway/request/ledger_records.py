"""Build the open record and the close record of a request for the ledger."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.encryption.bodies import has_key
from proxy.gateway.http.errors import HttpError
from proxy.ledger.journal.records import CloseRecord, OpenRecord
from proxy.ledger.recorder import recorder
from proxy.ledger.usage.pricing import name_of_usage
from translator.anthropic.usage import Usage
from translator.dialect import Stream, UpstreamError
from translator.notes import Note

if TYPE_CHECKING:
    from .request import Request

NO_TARGET: Final = {"model": "", "upstream": "", "dialect": ""}
"""The target fields of a request that is rejected before a route is chosen."""
THINKING: Final = frozenset({"thinking", "redacted_thinking"})
EPOCH: Final = date(1970, 1, 1)
DAY_S: Final = 24 * 60 * 60
QUOTED_TEXT: Final = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?)""", re.DOTALL)
"""A string quoted by ``repr``, even if it is truncated before its closing quote."""
MESSAGE_CHARACTERS: Final = 2_000
STOP_CHARACTERS: Final = 40
MAX_ITERATIONS: Final = 50
"""How many iterations a row has; its token counts are the sums of all."""
MAX_UNPRICED: Final = 50

unpriced_models: Final[dict[tuple[str, str], None]] = {}
"""Upstreams and models without a known price, which /readyz lists. Their requests cost null."""


def open_record(request: "Request", body: bytes | None, *, faulty: bool = False) -> OpenRecord:
    """Return the ledger record that opens the request.

    ``body``: None if the team stores no content. ``faulty``: whether the body is invalid (see
    OpenRecord).
    """
    head, caller, fields = request.head, request.caller, request.fields
    info, target = head.client_info, request.attempts.target_record
    target_fields, messages = target or NO_TARGET, fields.get("messages")
    # what a hard budget is charged if this process dies
    worst_case = request.reservation and request.reservation.worst_case
    return OpenRecord(
        id=head.request_id,
        created=request.created,
        worker=recorder.worker,
        team=caller.team.ledger_id,
        key_id=caller.key_id,
        user=caller.person_id,
        session_id=request.session_id,
        agent_id=info.agent_id,
        parent_agent_id=info.parent_agent_id,
        ip=head.ip,
        user_agent=info.user_agent,
        client_name=info.client.name,
        client_version=info.client.version,
        api_version=info.version,
        betas=info.betas,
        tags={**request.tags, **info.tags} if "tags" in fields else info.tags,
        traceparent=head.text(b"traceparent", 100) if b"traceparent" in head.headers else "",
        stream=request.streaming,
        model_requested=request.model[:200],
        model_upstream=target_fields["model"],
        upstream=target_fields["upstream"],
        dialect=target_fields["dialect"],
        request_bytes=request.size,
        message_count=len(messages)
        if isinstance(messages, list) and (body is None or faulty)
        else 0,
        target=target,
        worst_case={**worst_case, "source": "estimated"} if worst_case else {},
        body=body,
        faulty=faulty,
    )


def close_record(request: "Request", refusal: HttpError | None) -> CloseRecord:
    """Return the ledger record that closes the request.

    Also settle its rate limits with the usage.
    """
    response, stream = request.response, request.attempts.stream
    began, now = response.started, response.deadlines.now()
    first = request.attempts.first_content
    error = stream.error if stream is not None else None
    whole = stream is not None and error is None and stream.finished
    client_error = client_error_of(request, refusal, error)
    # if the client disconnected, ``request.outcome`` is set
    if whole and refusal is None and not request.outcome:
        outcome, status = "completed", 200
    else:
        outcome, status = outcome_and_status(request, refusal)
    attempts = request.attempts.records
    target = request.attempts.target_record
    target_fields = target or NO_TARGET
    usage = request.usage()
    usage_of_row = usage_record(usage)
    slot = request.slot
    if slot is not None and not slot.settled and usage.source != "missing":
        slot.settle(total_tokens(usage))
    message = request.attempts.response_message()
    tools, has_thinking = tools_and_thinking(message)
    notes = request.all_notes()
    return CloseRecord(
        id=request.head.request_id,
        finished=request.created + (now - began),
        outcome=outcome,
        status=status,
        stop_reason=(stream.stop_reason or "")[:STOP_CHARACTERS]
        if stream is not None and whole
        else "",
        error_type=client_error.type,
        error_message=client_error.message,
        error_source=client_error.source,
        detail=request.detail or (refusal.detail if refusal else "") or detail_of(stream),
        ttft_ms=None if first is None else _ms(first - began),
        total_ms=_ms(now - began),
        upstream_ms=_ms(now - attempts[0].at) if attempts else None,
        overhead_ms=_ms(attempts[0].at - began) if attempts else None,
        model_upstream=target_fields["model"],
        upstream=target_fields["upstream"],
        dialect=target_fields["dialect"],
        upstream_status=attempts[-1].status if attempts else None,
        upstream_request_id=request.attempts.upstream_request_id,
        attempts=[each.as_record(now) for each in attempts],
        notes=note_records(notes, request.caller.team.store_full and not has_key())
        if notes
        else [],
        unknown_events=dict(stream.unknown) if stream else {},
        usage=usage_of_row,
        price=price_at(request, target, usage_of_row),
        tool_calls=len(tools),
        tool_names=sorted(set(tools)) if tools else [],
        has_thinking=has_thinking,
        response_bytes=(
            response.response_bytes
            if response.bytes_at_disconnect is None
            else response.bytes_at_disconnect
        ),
        delivered=response.delivered and response.cancel_reason is None,
        upstream_request_sha256=request.attempts.body_digest,
        target=target,
        attempt=len(attempts) - 1 if attempts else 0,
        reads=request.take_unsaved_reads(broken=not whole),
        answer=message if request.caller.team.store_full else None,
    )


def _ms(seconds: float) -> float:
    """Return milliseconds with two decimals. This takes 0.2 µs; ``round`` takes 1.0 µs."""
    return int(seconds * 100_000 + 0.5) / 100


@lru_cache(maxsize=4)
def day_of(days: int) -> date:
    """Return the date that is ``days`` days after 1 January 1970."""
    return EPOCH + timedelta(days)


def price_at(
    request: "Request", target: Mapping[str, Any], usage: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the target's price when the request was accepted.

    If it is None, the ledger looks the price up when it stores the row.
    """
    if not target:
        return None
    upstream, model = target["upstream"], target["model"]
    price = price_of(request, upstream, model, usage)
    if price is None:
        unpriced = (upstream, name_of_usage(usage, model))  # with dimensions, such as "speed=fast"
        if unpriced not in unpriced_models:
            unpriced_models[unpriced] = None
            if (
                len(unpriced_models) > MAX_UNPRICED
            ):  # the oldest is listed again at its next request
                unpriced_models.pop(next(iter(unpriced_models)), None)
    elif unpriced_models:
        unpriced_models.pop((upstream, name_of_usage(usage, model)), None)
    return price


def price_of(
    request: "Request", upstream: str, model: str, usage: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the price of the tokens that was valid when the request was accepted."""
    day = day_of(int(request.created) // DAY_S)
    return request.prices.of_usage(upstream, model, day, usage)


class _ClientError(NamedTuple):
    """The error that the client received; all fields are empty if there was none."""

    type: str = ""
    message: str = ""
    source: str = ""


def client_error_of(
    request: "Request", refusal: HttpError | None, error: UpstreamError | None
) -> _ClientError:
    """Return the error that the client received; without its text if only metadata is stored."""
    if refusal is not None:
        kind, message, source = refusal.error_type, refusal.message, refusal.source
    elif error is not None:
        kind, message = error.error_type, error.message
        is_own = request.outcome in {"drained", "gateway_error", "refused"}
        source = "gateway" if is_own else "upstream"
    else:
        return _ClientError()
    if not request.caller.team.store_full:  # do not store the message, which may quote the request
        message = ""
    return _ClientError(kind, message[:MESSAGE_CHARACTERS], source)


def outcome_and_status(request: "Request", refusal: HttpError | None) -> tuple[str, int]:
    """Return the outcome and the HTTP status of a request that was not completed."""
    status_sent = 200 if request.response.headers_sent else 499
    # The client disconnected first, even if the upstream's response failed later.
    if request.response.bytes_at_disconnect is not None:
        return "client_gone", 499
    if refusal is not None:
        status = 200 if request.response.headers_sent and request.outcome else refusal.status
        return request.outcome or refusal.outcome, status
    if request.response.cancel_reason is not None:
        return "client_gone", 499
    return request.outcome or "gateway_error", status_sent


def usage_record(usage: Usage) -> dict[str, Any]:
    """Return the usage as a dict. This takes 0.4 µs; a loop over the fields takes 1.2 µs."""
    record: dict[str, Any] = {
        "input": usage.input,
        "output": usage.output,
        "cache_read": usage.cache_read,
        "cache_write_5m": usage.cache_write_5m,
        "cache_write_1h": usage.cache_write_1h,
        "reasoning": usage.reasoning,
        "web_searches": usage.web_searches,
        "service_tier": usage.service_tier,
        "source": usage.source,
        "output_source": usage.output_source,
    }
    if usage.speed is not None:
        record["speed"] = usage.speed
    if usage.inference_geo is not None:
        record["inference_geo"] = usage.inference_geo
    if usage.iterations:
        record["iterations"] = [asdict(each) for each in usage.iterations[:MAX_ITERATIONS]]
    return record


def note_records(notes: Sequence[Note], with_quotes: bool) -> list[dict[str, str]]:
    """Return the notes as dicts. ``with_quotes`` False: remove text that quotes the request."""
    records = [{"path": note.path, "fate": note.fate, "reason": note.reason} for note in notes]
    if not with_quotes:
        for each in records:
            each["reason"] = QUOTED_TEXT.sub("'…'", each["reason"])
    return records


def detail_of(stream: Stream | None) -> str:
    """Return the cause of the stream's end in one word.

    A completed response may have one, too (``bad_usage``).
    """
    if stream is None:
        return ""
    for note in stream.notes:
        if note.reason.startswith("bad_"):
            return note.reason.partition(":")[0][:200]
    return "bad_event" if stream.fault is not None else ""


def total_tokens(usage: Usage) -> int:
    """Return the tokens that count towards a limit: input, cache writes and output."""
    written = (usage.cache_write_5m or 0) + (usage.cache_write_1h or 0)
    return (usage.input or 0) + written + (usage.output or 0)


def tools_and_thinking(message: dict[str, Any] | None) -> tuple[list[str], bool]:
    """Return the names of the called tools, and whether the message contains thinking."""
    tools, has_thinking = [], False
    for block in message.get("content", ()) if message else ():
        kind = block.get("type")
        if kind == "tool_use":
            tools.append(str(block["name"]))
        elif kind in THINKING:
            has_thinking = True
    return tools, has_thinking
