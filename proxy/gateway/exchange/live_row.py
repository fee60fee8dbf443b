"""Build the row that shows a running request in the live view."""

from typing import TYPE_CHECKING, Final

from proxy.live.running_requests import LiveRow
from translator.anthropic.token_estimate import tokens_of_characters
from translator.anthropic.usage import Usage

if TYPE_CHECKING:
    from .request_context import RequestContext

BLOCK_STATES: Final = {
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "tool_use": "calling",
}
"""The state that the live view shows while a content block of this type is open."""


def build_live_row(context: "RequestContext") -> LiveRow:
    """Return the request's row.

    Any thread may call this, so the values may be from slightly different times.
    """
    head, caller, request = context.headers, context.caller, context.request
    began, now = context.response.started, context.response.deadlines.now()
    attempts = context.attempts
    stream, target = attempts.stream, attempts.target
    usage = stream.usage if stream is not None else Usage()
    has_final_usage = stream is not None and stream.finished and usage.output is not None
    output_estimate = tokens_of_characters(attempts.fold.characters)
    first = attempts.first_content
    return LiveRow(
        id=head.request_id,
        age_ms=round((now - began) * 1000, 1),
        team=caller.team.name,
        team_id=caller.team.ledger_id,
        key_id=caller.key_id,
        key=caller.key_name,
        user=caller.user,
        user_id=caller.person_id,
        client=" ".join(head.client).strip(),
        session=request.session_id,
        agent=head.text(b"x-claude-code-agent-id", 200),
        model=request.model[:200],
        upstream=target.server.name if target is not None else "",
        upstream_model=target.model_for(request.model)[:200] if target is not None else "",
        stream=request.streaming,
        speed=usage.speed or _asked(context, "speed"),
        inference_geo=usage.inference_geo or _asked(context, "inference_geo"),
        state=_state(context),
        input_tokens=usage.input if usage.input is not None else request.input_estimate,
        output_tokens=(usage.output or 0) if has_final_usage else output_estimate,
        estimated=not has_final_usage,
        attempts=len(attempts.records),
        first_ms=None if first is None else round((first - began) * 1000, 1),
    )


def _asked(context: "RequestContext", name: str) -> str:
    """Return a dimension of prices that the request asks for; "" if it asks for none."""
    value = context.request.fields.get(name)
    return value[:40] if isinstance(value, str) else ""


def _state(context: "RequestContext") -> str:
    if context.ending.stopped_by:
        return "stopping"
    if context.attempts.records:
        kind = context.attempts.fold.last_block_type
        return BLOCK_STATES.get(kind, "answering") if kind else "waiting"
    return "admitted" if context.request.model else "arriving"
