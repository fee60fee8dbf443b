"""Fills a gateway's ledger, from a process of its own: ``python -m tests.browser.seed office``.

``office``: two days of a small company, with one long session that cost the most yesterday, and
four transcripts that are past their time.
``hostile``: one request for each payload, which is in every field that takes text from strangers.
``harmless``: the same request once, with plain letters where a payload would be.
"""

import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
django.setup()

from django.utils.timezone import now  # noqa: E402 - models come after the setup

from proxy.models import Budget, Exchange, Route, RouteTarget, Upstream  # noqa: E402
from proxy.record.posting import Story, post  # noqa: E402
from tests.proxy.admin import cast, session_cast  # noqa: E402
from tests.proxy.admin.hostile import PAYLOADS  # noqa: E402

HARMLESS = "plain words of no meaning"
POSTED_AT_ONCE = 50
EVENING = 18
"""From this hour (UTC) on, midnight may fall into the tests: then today must have its dearest
session too, for it will be yesterday when they ask."""
SERVERS = (  # name, model, how soon they begin
    ("openai", "gpt-5.2", 700.0), ("vllm", "qwen3", 240.0),
    ("openai", "gpt-5.2", 900.0), ("anthropic", "claude-opus-5-5", 1200.0),
)  # fmt: skip
TOMORROWS = "e4a7c1b2-4d1e-4a6b-9c55-0b7a3c2f7d11"


def office() -> None:
    cast.price()
    ci, _ = cast.key("ci")
    ben, _ = cast.key("ben-laptop", user=cast.staff("ben", groups=("member",)))
    cleo, _ = cast.key("cleo", of="research")
    Budget.objects.create(team=ci.team, usd=400, period="month")
    yesterday = now().replace(hour=9, minute=0) - timedelta(days=1)
    stories = [
        story
        for n, key in enumerate([ci, ben, cleo] * 8)
        for story in _talk(yesterday + timedelta(minutes=31 * n), key, n)
    ]
    stories += [cast.story(at=yesterday - timedelta(days=99 + n), key=ci) for n in range(4)]
    stories += [_lately(n, [ci, ben, cleo][n % 3]) for n in range(40)]
    post(stories)
    session_cast.session(yesterday + timedelta(hours=3), team="platform")
    if now().hour >= EVENING:
        today = yesterday + timedelta(days=1, hours=3)
        session_cast.session(today, team="platform", session_id=TOMORROWS)


def _talk(at: datetime, key: Any, n: int) -> list[Story]:
    """A short session of two requests; every fifth one fails, every seventh has no price."""
    ends: dict[str, Any] = {"ttft_ms": 300.0 + 97 * (n % 13), "total_ms": 1500.0 + 731 * (n % 9)}
    if n % 5 == 3:
        ends |= {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {},
                 "error_type": "overloaded_error", "error_message": "the upstream is overloaded",
                 "error_source": "upstream"}  # fmt: skip
    if n % 7 == 2:
        ends |= {"model_upstream": "qwen3", "upstream": "vllm"}
    told = {"session_id": f"0000{n:04d}-aa", "user": key.user.username if key.user else ""}
    said = cast.request_body(messages=[{"role": "user", "content": f"How do tiles age? ({n})"}])
    return [
        cast.story(at=at + timedelta(seconds=40 * turn), team=key.team.name, key=key,
                   opening=told, closing=ends, body=said)
        for turn in (0, 1)
    ]  # fmt: skip


def _lately(n: int, key: Any) -> Story:
    """One of the requests of these hours, more of them of late; one upstream often fails."""
    upstream, model, first_ms = SERVERS[n % 4]
    ends: dict[str, Any] = {"ttft_ms": first_ms * (1 + n % 5 / 4), "total_ms": 3200.0,
                            "upstream": upstream, "model_upstream": model}  # fmt: skip
    if upstream == "vllm" and n % 3 == 0:
        ends |= {"outcome": "upstream_error", "status": 503, "stop_reason": "", "usage": {},
                 "error_type": "api_error", "error_source": "upstream"}  # fmt: skip
    user = key.user.username if key.user else ""
    return cast.story(
        at=now() - timedelta(minutes=1 + n * n // 2),
        team=key.team.name,
        key=key,
        opening={"session_id": f"0001{n:04d}-aa", "user": user, "upstream": upstream},
        closing=ends,
        body=cast.request_body(
            model=("claude-opus-5-5", "claude-sonnet-5")[n % 3 == 1],
            messages=[{"role": "user", "content": f"Which tiles are the oldest? ({n})"}],
        ),
    )


def writable(text: str) -> str:
    """Half a surrogate pair is no text that a record could hold; the decoder replaces it, too."""
    return text.encode(errors="replace").decode()


def strange(texts: Iterable[str]) -> None:
    """For each text a request that has it everywhere, and the objects that carry names."""
    at = now() - timedelta(hours=5)
    stories = [
        _everywhere(at + timedelta(seconds=n), n, writable(text)) for n, text in enumerate(texts)
    ]
    for first in range(0, len(stories), POSTED_AT_ONCE):
        post(stories[first : first + POSTED_AT_ONCE])


def _everywhere(at: datetime, n: int, text: str) -> Story:
    short = text[:60]
    content = [
        {"type": "text", "text": text},
        {"type": "thinking", "thinking": text, "signature": text},
        {"type": "tool_use", "id": f"toolu_{n}", "name": text, "input": {text: text}},
    ]
    result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": text}
    image = {"type": "image", "source": {"type": "url", "url": text, "media_type": text}}
    body = cast.request_body(
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
    return cast.story(
        at=at,
        team=short,
        body=body,
        answer=cast.answer_body(*content, model=text),
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


def names(label: str) -> None:
    """The objects that people name: a stranger with some rights, or a file, may have named them."""
    key, _ = cast.key(label, of=label)
    upstream = Upstream.objects.create(name=label, dialect="chat", base_url="http://127.0.0.1:9/v1")
    route = Route.objects.create(model=label, team=key.team)
    RouteTarget.objects.create(route=route, upstream=upstream, model=label)


def hostile() -> None:
    strange(PAYLOADS)
    for label in {writable(payload).replace("\x00", "")[:60] for payload in PAYLOADS}:
        names(label)


def harmless() -> None:
    strange([HARMLESS])


WORLDS: dict[str, Callable[[], None]] = {"office": office, "hostile": hostile, "harmless": harmless}

if __name__ == "__main__":
    WORLDS[sys.argv[1]]()
    print(Exchange.objects.count())  # noqa: T201 - for the test that started us
