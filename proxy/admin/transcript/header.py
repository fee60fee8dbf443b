"""The template values for the header of the transcript page: badges, tokens, timing, attempts."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from proxy.admin.core.exchange_text import cost_of, outcome_label
from proxy.admin.core.number_format import duration
from proxy.admin.core.time_zone import local_text
from proxy.ledger.usage.pricing import CLASSES
from proxy.models import Exchange
from translator.notes import LOSSY

EXACT: Final = "%Y-%m-%d %H:%M:%S.%f"
BAR_WIDTH: Final = 1000  # width of the SVG bars (tokens, timing) in user units


def token_classes(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the disjoint token classes with their segments of the token bar, then reasoning.

    A count is None if it was not reported. Reasoning tokens are included in the output tokens, so
    they have no segment of their own.
    """
    classes = [
        ("input", exchange.input_tokens, exchange.input_source, "in"),
        ("cache read", exchange.cache_read_tokens, exchange.cache_read_source, "read"),
        ("cache write 5m", exchange.cache_write_5m_tokens, exchange.cache_write_source, "write"),
        ("cache write 1h", exchange.cache_write_1h_tokens, exchange.cache_write_source, "write"),
        ("output", exchange.output_tokens, exchange.output_source, "out"),
        ("reasoning", exchange.reasoning_tokens, exchange.reasoning_source, ""),
    ]
    segments = _segments([count or 0 for _, count, _, slug in classes if slug])
    return [
        {
            "label": label,
            "count": count,
            "count_text": "" if count is None else f"{count:,}",
            "source": source,
            "slug": slug,
            "x": x,
            "width": width,
        }
        for (label, count, source, slug), (x, width) in zip(
            classes, [*segments, (0, 0)], strict=True
        )
    ]


def phases(exchange: Exchange) -> list[dict[str, Any]]:
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
    return [
        {"label": label, "length": duration(length), "slug": slug, "x": x, "width": width}
        for (label, length, slug), (x, width) in zip(
            lengths, _segments([length for _, length, _ in lengths]), strict=True
        )
    ]


def _segments(sizes: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Yield start and width of each size on a bar of ``BAR_WIDTH`` for all of them."""
    whole, x = sum(sizes) or 1, 0.0
    for size in sizes:
        width = BAR_WIDTH * size / whole
        yield round(x, 1), round(width, 1)
        x += width


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
    return "; ".join(
        f"{each.get('type')}{' of ' + str(each['model']) if each.get('model') else ''} "
        f"{each.get('input') or 0:,} in, {each.get('output') or 0:,} out"
        for each in _dicts(iterations)
        if each
    )


def _price(price: Any) -> str:
    """Return a price as text: model, upstream, first day, and rates per million tokens."""
    if not isinstance(price, dict):
        return ""
    rates = []
    for name in CLASSES:
        if price.get(name) is not None:
            amount = str(price[name])
            amount = amount.rstrip("0").rstrip(".") if "." in amount else amount
            rates.append(f"{name.replace('_', ' ')} ${amount}")
    where = f" at {price['upstream']}" if price.get("upstream") else ""
    since = f"since {price.get('since')}: " if price.get("since") else ""
    return f"{price.get('model', '')}{where} {since}{', '.join(rates)} per million tokens".strip()


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
        # Notes about lost information come first.
        "notes": sorted(_dicts(exchange.notes), key=lambda note: note.get("fate") not in LOSSY),
        "attempts": _dicts(exchange.attempts),
        "unknown_events": list(_dict(exchange.unknown_events).items()),
    }


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
