"""The head of the transcript page: badges, token classes, timing bar, attempts, all as values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.models import Exchange, Outcome, State
from proxy.record.pricing import CLASSES
from translator.notes import LOSSY

from .figures import cost_of, duration

WALKED_AWAY: Final = frozenset({Outcome.CLIENT_GONE, Outcome.DRAINED})
BAR_WIDTH: Final = 1000  # user units of the timing bar's SVG


@dataclass(frozen=True, slots=True)
class TokenClass:
    """One class of tokens. ``count`` None: nobody said."""

    label: str
    count: int | None
    source: str
    x: float = 0
    width: float = 0
    slug: str = ""

    @property
    def count_text(self) -> str:
        return "unknown" if self.count is None else f"{self.count:,}"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the timing bar, in user units of its SVG."""

    label: str
    length: str
    x: float
    width: float
    slug: str


def token_classes(exchange: Exchange) -> list[TokenClass]:
    """The disjoint classes, with their place on a bar of all tokens, then reasoning (in output)."""
    classes = [
        ("input", exchange.input_tokens, exchange.input_source, "in"),
        ("cache read", exchange.cache_read_tokens, exchange.cache_read_source, "read"),
        ("cache write 5m", exchange.cache_write_5m_tokens, exchange.cache_write_source, "write"),
        ("cache write 1h", exchange.cache_write_1h_tokens, exchange.cache_write_source, "write"),
        ("output", exchange.output_tokens, exchange.output_source, "out"),
    ]
    whole = sum(count or 0 for _, count, _, _ in classes) or 1
    shown: list[TokenClass] = []
    x = 0.0
    for label, count, source, slug in classes:
        width = BAR_WIDTH * (count or 0) / whole
        shown.append(TokenClass(label, count, source, round(x, 1), round(width, 1), slug))
        x += width
    shown.append(
        TokenClass("of it reasoning", exchange.reasoning_tokens, exchange.reasoning_source)
    )
    return shown


def phases(exchange: Exchange) -> list[Phase]:
    """Where the time went: before the dial, waiting for the first content, streaming."""
    total = exchange.total_ms
    if not total or total <= 0:
        return []
    queue = min(total, exchange.queue_ms or 0)
    before = min(total, queue + (exchange.overhead_ms or 0))
    first = min(total, max(before, exchange.ttft_ms if exchange.ttft_ms is not None else total))
    stretches = [
        *([("queue", queue, "queue")] if queue else []),
        ("gateway", before - queue, "gate"),
        ("until the first content", first - before, "wait"),
        ("streaming", total - first, "flow"),
    ]
    x = 0.0
    shown = []
    for label, length, slug in stretches:
        width = BAR_WIDTH * length / total
        shown.append(Phase(label, duration(length), round(x, 1), round(width, 1), slug))
        x += width
    return shown


def facts(exchange: Exchange) -> list[tuple[str, str]]:
    """Everything else that was recorded, in a person's words; empty ones are left out."""
    pairs: Sequence[tuple[str, Any]] = (
        ("Request", exchange.pk),
        ("Accepted", f"{exchange.created:%Y-%m-%d %H:%M:%S.%f} UTC"),
        ("Finished", f"{exchange.finished:%Y-%m-%d %H:%M:%S.%f} UTC" if exchange.finished else ""),
        ("User", exchange.user),
        ("Session", exchange.session_id),
        ("Agent", exchange.agent_id),
        ("Parent agent", exchange.parent_agent_id),
        ("Client", f"{exchange.client_name} {exchange.client_version}".strip()),
        ("User agent", exchange.user_agent),
        ("Address", exchange.ip),
        ("API version", exchange.api_version),
        ("Betas", ", ".join(map(str, exchange.betas if isinstance(exchange.betas, list) else []))),
        ("Tags", ", ".join(f"{k}={v}" for k, v in _dict(exchange.tags).items())),
        ("Trace", exchange.traceparent),
        ("Endpoint", exchange.endpoint + (", streamed" if exchange.stream else ", whole answer")),
        ("Dialect", exchange.dialect),
        ("Upstream status", exchange.upstream_status),
        ("Upstream request", exchange.upstream_request_id),
        ("Service tier", exchange.service_tier),
        ("Request size", f"{exchange.request_bytes:,} bytes"),
        ("Answer size", f"{exchange.response_bytes:,} bytes"),
        ("Delivered", "" if exchange.delivered else "no: the client was gone"),
        ("Price used", _price(exchange.price)),
        ("Cause", exchange.detail),
    )
    return [(name, str(value)) for name, value in pairs if value not in ("", None)]


def _price(price: Any) -> str:
    """Whose it is, since when, and what a million tokens of each class cost."""
    if not isinstance(price, dict):
        return ""
    where = f" at {price['upstream']}" if price.get("upstream") else ""
    usd = [
        f"{name.replace('_', ' ')} ${_bare(price[name])}"
        for name in CLASSES
        if price.get(name) is not None
    ]
    since = f"since {price.get('since')}: " if price.get("since") else ""
    return f"{price.get('model', '')}{where} {since}{', '.join(usd)} per million tokens".strip()


def _bare(amount: Any) -> str:
    """A decimal without the zeros that say nothing."""
    text = str(amount)
    return text.rstrip("0").rstrip(".") if "." in text else text


def tone_of(exchange: Exchange) -> tuple[str, str]:
    """A colour and a word for how a request ended; the colour never speaks alone."""
    if exchange.state == State.OPEN:
        return "running", "running"
    word = exchange.outcome.replace("_", " ")
    if exchange.outcome == Outcome.COMPLETED:
        return "good", word
    return ("left" if exchange.outcome in WALKED_AWAY else "bad"), word


def head(exchange: Exchange) -> dict[str, Any]:
    """What the head of the page shows, by the names its template uses."""
    tone, word = tone_of(exchange)
    return {
        "tone": tone,
        "word": word,
        "facts": facts(exchange),
        "tokens": token_classes(exchange),
        "phases": phases(exchange),
        "cost": cost_of(exchange),
        "total_time": duration(exchange.total_ms),
        "notes": _notes(exchange.notes),
        "attempts": _dicts(exchange.attempts),
        "unknown_events": list(_dict(exchange.unknown_events).items()),
    }


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _notes(value: Any) -> list[dict[str, Any]]:
    """Notes, the lossy ones first: they are what a reader must know."""
    return sorted(_dicts(value), key=lambda note: note.get("fate") not in LOSSY)
