"""The badge that shows the outcome of a request."""

from typing import Final

from proxy.models import Exchange, Outcome, State

INTERRUPTED: Final = frozenset({Outcome.CLIENT_GONE, Outcome.DRAINED})


def outcome_label(exchange: Exchange) -> tuple[str, str]:
    """Return the tone, which selects the badge's color, and the text for a request's outcome."""
    if exchange.state == State.OPEN:
        return "running", "running"
    text = exchange.outcome.replace("_", " ")
    if exchange.outcome == Outcome.COMPLETED:
        return "good", text
    return ("left" if exchange.outcome in INTERRUPTED else "bad"), text
