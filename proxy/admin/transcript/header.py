"""The template values for the header of the transcript page: badges, tokens, timing, attempts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.admin.core.number_format import cost_of, duration
from proxy.admin.core.outcome_label import outcome_label
from proxy.admin.core.time_zone import local_text
from proxy.ledger.usage.pricing import CLASSES
from proxy.models import Exchange
from translator.notes import LOSSY

EXACT: Final = "%Y-%m-%d %H:%M:%S.%f"
BAR_WIDTH: Final = 1000  # width of the SVG bars (tokens, timing) in user units


@dataclass(frozen=True, slots=True)
class TokenClass:
    """One class of tokens and its segment of the token bar; ``count`` is None if not reported."""

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
    """One phase of the request on the timing bar; ``x`` and ``width`` are in SVG user units."""

    label: str
    length: str
    x: float
    width: float
    slug: str


def token_classes(exchange: Exchange) -> list[TokenClass]:
    """Return the disjoint token classes with their segments of the token bar, then reasoning.

    Reasoning tokens are included in the output tokens, so they have no segment of their own.
    """
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
    shown.append(TokenClass("reasoning", exchange.reasoning_tokens, exchange.reasoning_source))
    return shown


def phases(exchange: Exchange) -> list[Phase]:
    """Return the phases of the request: queue, gateway, wait for first byte, streaming."""
    total = exchange.total_ms
    if not total or total <= 0:
        return []
    queue = min(total, exchange.queue_ms or 0)
    before = min(total, queue + (exchange.overhead_ms or 0))
    first = min(total, max(before, exchange.ttft_ms if exchange.ttft_ms is not None else total))
    lengths = [
        *([("queue", queue, "queue")] if queue else []),
        ("gateway", before - queue, "gate"),
        ("time to first byte", first - before, "wait"),
        ("streaming", total - first, "flow"),
    ]
    x = 0.0
    shown = []
    for label, length, slug in lengths:
        width = BAR_WIDTH * length / total
        shown.append(Phase(label, duration(length), round(x, 1), round(width, 1), slug))
        x += width
    return shown


def facts(exchange: Exchange) -> list[tuple[str, str]]:
    """Return (label, text) of the recorded values without a badge or bar, except empty ones."""
    pairs: Sequence[tuple[str, Any]] = (
        ("Request", exchange.pk),
        ("Accepted", local_text(exchange.created, EXACT)),
        ("Finished", local_text(exchange.finished, EXACT) if exchange.finished else ""),
        ("User", exchange.names.user),
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
        ("Endpoint", exchange.endpoint + (", streamed" if exchange.stream else ", not streamed")),
        ("Dialect", exchange.dialect),
        ("Upstream status", exchange.upstream_status),
        ("Upstream request", exchange.upstream_request_id),
        ("Service tier", exchange.service_tier),
        ("Speed", exchange.speed),
        ("Inference region", exchange.inference_geo),
        ("Iterations", _iterations(exchange.iterations)),
        ("Request size", f"{exchange.request_bytes:,} bytes"),
        ("Response size", f"{exchange.response_bytes:,} bytes"),
        ("Delivered", "" if exchange.delivered else "no: the client disconnected"),
        ("Price used", _price(exchange.price)),
        ("Cause", exchange.detail),
    )
    return [(name, str(value)) for name, value in pairs if value not in ("", None)]


def _iterations(iterations: Any) -> str:
    """Return the samplings that are charged as text, such as ``compaction 1,000 in, 20 out``."""
    entries = filter(None, map(_dict, iterations if isinstance(iterations, list) else []))
    return "; ".join(
        f"{each.get('type')}{' of ' + str(each['model']) if each.get('model') else ''} "
        f"{each.get('input') or 0:,} in, {each.get('output') or 0:,} out"
        for each in entries
    )


def _price(price: Any) -> str:
    """Return a price as text: model, upstream, first day, and rates per million tokens."""
    if not isinstance(price, dict):
        return ""
    where = f" at {price['upstream']}" if price.get("upstream") else ""
    usd = [
        f"{name.replace('_', ' ')} ${_strip_zeros(price[name])}"
        for name in CLASSES
        if price.get(name) is not None
    ]
    since = f"since {price.get('since')}: " if price.get("since") else ""
    return f"{price.get('model', '')}{where} {since}{', '.join(usd)} per million tokens".strip()


def _strip_zeros(amount: Any) -> str:
    """Format a decimal number without trailing zeros."""
    text = str(amount)
    return text.rstrip("0").rstrip(".") if "." in text else text


def header_context(exchange: Exchange) -> dict[str, Any]:
    """Return the template context of the transcript page's header."""
    tone, outcome_text = outcome_label(exchange)
    return {
        "tone": tone,
        "outcome_text": outcome_text,
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
    """Return the translation notes; notes about lost information come first."""
    return sorted(_dicts(value), key=lambda note: note.get("fate") not in LOSSY)
