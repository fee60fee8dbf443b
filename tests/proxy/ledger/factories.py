"""Create records as the gateway does, with defaults for fields that a test does not need."""

import json
from typing import Any

from proxy.ledger.journal.records import CloseRecord, OpenRecord

NOON = 1_795_262_400.0  # 2026-11-21T12:00:00Z


def exchange_id(number: int) -> str:
    return f"req_{number:026d}"


def body(*messages: Any, **fields: Any) -> bytes:
    parsed = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return json.dumps(
        {"model": "claude-opus", "max_tokens": 64, "messages": parsed, **fields}
    ).encode()


def opening(number: int = 1, **fields: Any) -> OpenRecord:
    defaults: dict[str, Any] = {
        "id": exchange_id(number),
        "created": NOON + number,
        "worker": "here-1-aa",
        "team": "platform",
        "key_id": 1,
        "key_name": "ada-laptop",
        "user": "ada",
        "model_requested": "claude-opus",
        "model_upstream": "gpt-5.2",
        "upstream": "openai",
        "dialect": "responses",
        "body": body("What is the capital of France?"),
    }
    return OpenRecord(**defaults | fields)


def closing(number: int = 1, **fields: Any) -> CloseRecord:
    defaults: dict[str, Any] = {
        "id": exchange_id(number),
        "finished": NOON + number + 2.5,
        "outcome": "completed",
        "status": 200,
        "stop_reason": "end_turn",
        "ttft_ms": 840.0,
        "total_ms": 2500.0,
        "usage": {"input": 320, "output": 17, "cache_read": 4000, "source": "reported"},
        "answer": answer("Paris."),
    }
    return CloseRecord(**defaults | fields)


def answer(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        **fields,
    }
