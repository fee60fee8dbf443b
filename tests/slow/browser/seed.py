"""Fill a gateway's ledger, by ``manage.py shell``; ``DATASETS`` has a function for each content.

``office``: two days of a small company. One long session is the most expensive of yesterday, and
four transcripts are past their retention.
``hostile``: one request for each payload, with it in every text field of clients and upstreams, and
the same request with plain text. ``hostile examples``: the same for one payload of each kind.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.utils.timezone import now

from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Budget, Route, RouteTarget, Upstream
from tests.proxy.admin import factories, session_factories
from tests.proxy.admin.hostile import EXAMPLES, PAYLOADS

HARMLESS = "plain text without meaning"
POSTED_AT_ONCE = 50
EVENING = 18
"""From this hour (UTC), midnight may pass during the tests: then today becomes yesterday, and needs
the most expensive session too."""
SERVERS = (  # name, model, time to the first byte in ms
    ("openai", "gpt-5.2", 700.0), ("vllm", "qwen3", 240.0),
    ("openai", "gpt-5.2", 900.0), ("anthropic", "claude-opus-5-5", 1200.0),
)  # fmt: skip
TOMORROWS = "e4a7c1b2-4d1e-4a6b-9c55-0b7a3c2f7d11"


def office() -> None:
    factories.price()
    ci, _ = factories.key("ci")
    ben, _ = factories.key("ben-laptop", user=factories.staff("ben", groups=("member",)))
    cleo, _ = factories.key("cleo", of="research")
    Budget.objects.create(team=ci.team, usd=400, period="month")
    yesterday = now().replace(hour=9, minute=0) - timedelta(days=1)
    records = [
        record
        for n, key in enumerate([ci, ben, cleo] * 8)
        for record in _session_records(yesterday + timedelta(minutes=31 * n), key, n)
    ]
    records += [
        factories.exchange_records(at=yesterday - timedelta(days=99 + n), key=ci) for n in range(4)
    ]
    records += [_recent_records(n, [ci, ben, cleo][n % 3]) for n in range(40)]
    write_to_database(records)
    session_factories.session(yesterday + timedelta(hours=3), team="platform")
    if now().hour >= EVENING:
        today = yesterday + timedelta(days=1, hours=3)
        session_factories.session(today, team="platform", session_id=TOMORROWS)


def _session_records(at: datetime, key: Any, n: int) -> list[ExchangeRecords]:
    """Return a session of two requests; every fifth one fails, every seventh has no price."""
    ends: dict[str, Any] = {"ttft_ms": 300.0 + 97 * (n % 13), "total_ms": 1500.0 + 731 * (n % 9)}
    if n % 5 == 3:
        ends |= {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {},
                 "error_type": "overloaded_error", "error_message": "the upstream is overloaded",
                 "error_source": "upstream"}  # fmt: skip
    if n % 7 == 2:
        ends |= {"model_upstream": "qwen3", "upstream": "vllm"}
    opening = {"session_id": f"0000{n:04d}-aa", "user": key.user.username if key.user else ""}
    body = factories.request_body(
        messages=[{"role": "user", "content": f"How do tiles age? ({n})"}]
    )
    return [
        factories.exchange_records(at=at + timedelta(seconds=40 * turn), team=key.team.name, key=key,
                   opening=opening, closing=ends, body=body)
        for turn in (0, 1)
    ]  # fmt: skip


def _recent_records(n: int, key: Any) -> ExchangeRecords:
    """Return a request of the last hours, most of them recent; one upstream often fails.

    Every eighth one is cut at its output limit.
    """
    upstream, model, first_ms = SERVERS[n % 4]
    ends: dict[str, Any] = {"ttft_ms": first_ms * (1 + n % 5 / 4), "total_ms": 3200.0,
                            "upstream": upstream, "model_upstream": model}  # fmt: skip
    if upstream == "vllm" and n % 3 == 0:
        ends |= {"outcome": "upstream_error", "status": 503, "stop_reason": "", "usage": {},
                 "error_type": "api_error", "error_source": "upstream"}  # fmt: skip
    if n % 8 == 5:
        ends |= {"stop_reason": "max_tokens"}
    user = key.user.username if key.user else ""
    return factories.exchange_records(
        at=now() - timedelta(minutes=1 + n * n // 2),
        team=key.team.name,
        key=key,
        opening={"session_id": f"0001{n:04d}-aa", "user": user, "upstream": upstream},
        closing=ends,
        body=factories.request_body(
            model=("claude-opus-5-5", "claude-sonnet-5")[n % 3 == 1],
            messages=[{"role": "user", "content": f"Which tiles are the oldest? ({n})"}],
        ),
    )


def writable(text: str) -> str:
    """Replace unpaired surrogates, as the decoder does: a record cannot have them."""
    return text.encode(errors="replace").decode()


def seed_texts(texts: Iterable[str]) -> None:
    """Write a request for each text, with the text in every text field."""
    at = now() - timedelta(hours=5)
    records = [
        _records_with_text(at + timedelta(seconds=n), n, writable(text))
        for n, text in enumerate(texts)
    ]
    for first in range(0, len(records), POSTED_AT_ONCE):
        write_to_database(records[first : first + POSTED_AT_ONCE])


def _records_with_text(at: datetime, n: int, text: str) -> ExchangeRecords:
    short = text[:60]
    content = [
        {"type": "text", "text": text},
        {"type": "thinking", "thinking": text, "signature": text},
        {"type": "tool_use", "id": f"toolu_{n}", "name": text, "input": {text: text}},
    ]
    result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": text}
    image = {"type": "image", "source": {"type": "url", "url": text, "media_type": text}}
    body = factories.request_body(
        model=text,
        system=[{"type": "text", "text": text}],
        tools=[{"name": text, "description": text, "input_schema": {"description": text}}],
        metadata={"user_id": text},
        messages=[
            {"role": "user", "content": [{"type": "text", "text": text}, image]},
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result, {"type": text, "text": text}]},
        ],
    )
    return factories.exchange_records(
        at=at,
        team=short,
        body=body,
        answer=factories.answer_body(*content, model=text),
        reads=((3.0, text.encode(errors="replace")),),
        opening={
            "id": f"req_{n:026d}", "key_name": short, "user": short, "session_id": text[:190],
            "agent_id": short, "parent_agent_id": short, "user_agent": text[:290],
            "client_name": short, "client_version": text[:30], "api_version": text[:10],
            "betas": [text], "tags": {text: text}, "traceparent": short, "dialect": text[:16],
            "upstream": short, "model_upstream": text,
        },
        closing={
            "id": f"req_{n:026d}", "stop_reason": text[:38], "error_type": text[:38],
            "error_message": text, "detail": text, "upstream": short, "model_upstream": text,
            "dialect": text[:16], "upstream_request_id": text[:190],
            "attempts": [{"upstream": text, "model": text, "status": 200, "error": text, "ms": 9}],
            "notes": [{"path": text, "fate": text, "reason": text}], "unknown_events": {text: 2},
        },
    )  # fmt: skip


def seed_named_objects(label: str) -> None:
    """Create one of each configuration object that users name."""
    key, _ = factories.key(label, of=label)
    upstream = Upstream.objects.create(name=label, dialect="chat", base_url="http://127.0.0.1:9/v1")
    route = Route.objects.create(model=label, team=key.team)
    RouteTarget.objects.create(route=route, upstream=upstream, model=label)


def hostile(payloads: Iterable[str]) -> None:
    seed_texts([*payloads, HARMLESS])
    for label in {writable(payload).replace("\x00", "")[:60] for payload in payloads}:
        seed_named_objects(label)


DATASETS: dict[str, Callable[[], None]] = {
    "office": office,
    "hostile": lambda: hostile(PAYLOADS),
    "hostile examples": lambda: hostile(EXAMPLES),
}
