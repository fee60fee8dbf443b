"""How a request is shown on all pages: its outcome, its cost, and its session."""

from typing import Final
from urllib.parse import urlencode

from django.urls import reverse

from proxy.models import Exchange, Outcome, State

from .number_format import UNKNOWN, dollars

INTERRUPTED: Final = frozenset({Outcome.CLIENT_GONE, Outcome.DRAINED})


def outcome_label(exchange: Exchange) -> tuple[str, str]:
    """Return the tone, which selects the badge's color, and the text for a request's outcome."""
    if exchange.state == State.OPEN:
        return "running", "running"
    text = exchange.outcome.replace("_", " ")
    if exchange.outcome == Outcome.COMPLETED:
        return "good", text
    return ("left" if exchange.outcome in INTERRUPTED else "bad"), text


def is_unpriced(row: Exchange) -> bool:
    """Whether a finished request used tokens but has no cost, because its model has no price."""
    used = row.input_tokens is not None or row.output_tokens is not None
    return used and row.cost_nanousd is None and row.state == State.CLOSED


def cost_of(row: Exchange) -> str:
    """Format the cost of a request: "…" while the request runs, "—" if it has no token counts."""
    if row.state == State.OPEN:
        return "…"
    if row.cost_nanousd is None and not is_unpriced(row):
        return UNKNOWN
    return dollars(row.cost_nanousd)


def session_url(session_id: str) -> str:
    """Return the URL of a session. The id is a query parameter, since it may contain a slash."""
    return f"{reverse('admin:proxy_session')}?{urlencode({'id': session_id})}"


def short_id(session: str) -> str:
    """Return the beginning of a session id, which is enough to distinguish sessions on a page."""
    return session if len(session) <= 13 else f"{session[:12]}…"


def shorter_id(session: str) -> str:
    """Return an even shorter beginning, for narrow columns."""
    return session if len(session) <= 9 else f"{session[:8]}…"
