"""How a running exchange stands: what the live view shows of it. Read when somebody asks."""

from typing import TYPE_CHECKING, Final

from proxy.live.running import Row
from translator.anthropic.usage import Usage

if TYPE_CHECKING:
    from .ledger import Exchange

BYTES_PER_TOKEN: Final = 4  # of English text and code
DOING: Final = {"thinking": "thinking", "redacted_thinking": "thinking", "tool_use": "calling"}
"""What an answer is at while a block of this type is open."""


def row_of(exchange: "Exchange") -> Row:
    """Called from any thread: it only reads, and what it reads may be a moment apart."""
    head, caller, now = exchange.head, exchange.caller, exchange.consumer.watch.now()
    stream, target = exchange.stream, exchange.target
    usage = stream.usage if stream is not None else Usage()
    over = stream is not None and stream.finished and usage.output is not None
    said = exchange.fold.characters // BYTES_PER_TOKEN
    first = exchange.first_content
    return Row(
        id=head.request_id,
        age_ms=round((now - exchange.began) * 1000, 1),
        team=caller.team.name,
        key_id=caller.key_id,
        key=caller.key_name,
        user=caller.user,
        client=" ".join(head.client).strip(),
        session=exchange.session_id,
        agent=head.text(b"x-claude-code-agent-id", 200),
        model=exchange.model[:200],
        upstream=target.server.name if target is not None else "",
        upstream_model=target.model_for(exchange.model)[:200] if target is not None else "",
        stream=exchange.request.get("stream") is True,
        state=_state(exchange),
        input_tokens=usage.input if usage.input is not None else exchange.input_estimate,
        output_tokens=(usage.output or 0) if over else said,
        estimated=not over,
        attempts=len(exchange.dials),
        first_ms=None if first is None else round((first - exchange.began) * 1000, 1),
    )


def _state(exchange: "Exchange") -> str:
    if exchange.stopped_by:
        return "stopping"
    if exchange.dials:
        kind = exchange.fold.speaking
        return DOING.get(kind, "answering") if kind else "waiting"
    return "admitted" if exchange.model else "arriving"
