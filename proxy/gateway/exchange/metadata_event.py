"""The optional SSE event ``bridge.metadata``: the request's target, attempts, usage and latency."""

from typing import Any

from translator.anthropic.usage import NAMES

from .request_context import RequestContext


def metadata_event(context: RequestContext, ending: dict[str, Any]) -> dict[str, Any]:
    """Return the event to send just before ``ending``, which is ``message_stop`` or ``error``."""
    attempts, usage = context.attempts, context.usage()
    began, now = context.response.started, context.response.deadlines.now()
    first, stream = attempts.first_content, attempts.stream
    failed = ending["type"] == "error"
    notes = [*attempts.notes, *(stream.notes if stream else ())]
    return {
        "type": "bridge.metadata",
        "trace_id": context.headers.request_id,
        "route": context.admission.route_name,
        "upstream": attempts.target_record.get("upstream", ""),
        "model": attempts.target_record.get("model", ""),
        "success": not failed,
        "attempts": len(attempts.records),
        "tokens": {
            "input": usage.input,
            "output": usage.output,
            "source": usage.source,
            # which price applies: the service tier, speed and region, as far as reported
            **{name: value for name in NAMES if (value := getattr(usage, name))},
        },
        "latency_ms": _ms(now - began),
        "ttft_ms": None if first is None else _ms(first - began),
        "terminal_reason": "error" if failed else "stop",
        "error": ending["error"] if failed else None,
        "notes": [{"path": n.path, "fate": n.fate, "reason": n.reason} for n in notes],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
