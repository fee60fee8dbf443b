"""Opt-in extras of a stream: ``bridge.metadata`` tells how the answer came about."""

from typing import Any

from .ledger import Exchange


def metadata_event(entry: Exchange, ending: dict[str, Any]) -> dict[str, Any]:
    """``event: bridge.metadata``: sent just before ``message_stop`` or ``error``."""
    stream, usage, now = entry.stream, entry.usage(), entry.consumer.watch.now()
    failed = ending["type"] == "error"
    target = entry.target.as_record(entry.model) if entry.target else {}
    notes = [*entry.notes, *(stream.notes if stream else ())]
    return {
        "type": "bridge.metadata",
        "trace_id": entry.head.request_id,
        "route": entry.route_name,
        "upstream": target.get("upstream", ""),
        "model": target.get("model", ""),
        "success": not failed,
        "attempts": len(entry.dials),
        "tokens": {"input": usage.input, "output": usage.output, "source": usage.source},
        "latency_ms": _ms(now - entry.began),
        "ttft_ms": None if entry.first_content is None else _ms(entry.first_content - entry.began),
        "terminal_reason": "error" if failed else "stop",
        "error": ending["error"] if failed else None,
        "notes": [{"path": n.path, "fate": n.fate, "reason": n.reason} for n in notes],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
