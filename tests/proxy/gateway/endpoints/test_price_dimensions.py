"""Service tiers, speeds, regions and iterations are recorded with the request and priced."""

import itertools

import pytest

from proxy.gateway.request.ledger_records import unpriced_models
from proxy.models import ApiKey, Budget, Price, Team, Upstream
from tests.fakes.upstreams.script_steps import json_response
from tests.for_each import for_each
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.upstream_scripts import COMPLETION, USAGE, sse, stream

numbers = itertools.count()


def price(upstream: str, model: str, usd: int, **dimensions: str) -> None:
    Price.objects.create(
        upstream=Upstream.objects.get(name=upstream),
        model=model,
        since="2026-01-01",
        input=usd,
        output=usd,
        **dimensions,
    )


def claude(usage: dict, model: str = "claude-x") -> list:
    """Return the script of a stream of Anthropic's that ends with this usage."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
    start |= {"stop_reason": None, "stop_sequence": None}
    start["usage"] = {"input_tokens": 12, "output_tokens": 1}
    text = {"type": "text", "text": ""}
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Done."},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return stream(b"".join(sse(each, each["type"]) for each in events))


def counts(kind: str, given: int, taken: int, model: str | None = None) -> dict:
    named = {"model": model} if model else {}
    return {"type": kind, "input_tokens": given, "output_tokens": taken, **named}


END = {"input_tokens": 12, "output_tokens": 5}
COMPACTED = [counts("compaction", 100, 20), counts("message", 12, 5)]
DECLINED = [counts("message", 12, 0, "anthropic-m"), counts("fallback_message", 12, 5, "other")]


@for_each(
    ("usage", "charged"),
    [
        ({}, (12, 5, 17)),
        ({"speed": "fast"}, (12, 5, 2 * 17)),
        ({"inference_geo": "us"}, (12, 5, 3 * 17)),
        ({"service_tier": "batch"}, (12, 5, None)),
        ({"iterations": COMPACTED}, (112, 25, 137)),
        ({"iterations": COMPACTED, "speed": "fast"}, (112, 25, 2 * 137)),
        ({"iterations": DECLINED}, (12, 5, 4 * 17)),
    ],
)
def test_anthropic_s_dimensions_are_recorded_and_priced(gateway, scripted, reload, usage, charged):
    *tokens, cost = charged
    model = f"anthropic-priced-{next(numbers)}"
    price("anthropic", model, 1)
    price("anthropic", model, 2, speed="fast")
    price("anthropic", model, 3, inference_geo="us")
    Price.objects.get_or_create(model="other", since="2026-01-01", input=4, output=4)
    reload()
    scripted.on(model, claude(END | usage))

    reply = gateway.post(message(model, stream=True))

    stored = row(reply.id)
    assert [stored.input_tokens, stored.output_tokens] == tokens
    assert stored.cost_nanousd == (None if cost is None else 1000 * cost)
    for name in ("speed", "inference_geo", "service_tier"):
        assert getattr(stored, name) == usage.get(name, "")
    billed = [each for each in usage.get("iterations", ()) if each is not DECLINED[0]]
    assert [each["type"] for each in stored.iterations] == [each["type"] for each in billed]
    missing = ("anthropic", f"{model} service_tier=batch")
    assert (missing in unpriced_models) is (cost is None)


@for_each(
    ("answered", "cost"),
    [
        ("chat default", 17),
        ("chat flex", 8),
        ("chat priority", None),
        ("responses auto", 17),
        ("responses flex", 8),
        ("responses priority", None),
    ],
)
def test_openai_s_tiers_are_recorded_and_priced(gateway, scripted, reload, answered, cost):
    dialect, tier = answered.split()
    model = f"{dialect}-tiers-{next(numbers)}"
    price(dialect, model, 1)
    Price.objects.create(
        upstream=Upstream.objects.get(name=dialect), model=model, since="2026-01-01",
        input="0", output="1.6", service_tier="flex",
    )  # fmt: skip
    reload()
    if dialect == "chat":
        answer = COMPLETION | {"usage": USAGE, "service_tier": tier}
    else:
        part = {"type": "output_text", "text": "Done.", "annotations": []}
        item = {"id": "i", "type": "message", "role": "assistant", "content": [part]}
        usage = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}
        answer = {"id": "r", "object": "response", "status": "completed", "model": "m"}
        answer |= {"output": [item], "usage": usage, "service_tier": tier}
    scripted.on(model, json_response(answer))

    stored = row(gateway.post(message(model)).id)

    assert stored.cost_nanousd == (None if cost is None else 1000 * cost)
    names = {"default": "standard", "auto": "standard"}
    assert stored.service_tier == names.get(tier, tier)


@pytest.mark.parametrize(("priced", "status"), [(False, 402), (True, 200)])
def test_a_hard_budget_needs_the_price_of_the_speed(gateway, scripted, reload, priced, status):
    team = Team.objects.create(name=f"fast-{next(numbers)}")
    Budget.objects.create(team=team, usd="5", hard=True)
    model = f"anthropic-fast-{next(numbers)}"
    price("anthropic", model, 1)
    if priced:
        price("anthropic", model, 6, speed="fast")
    _, key = ApiKey.issue(team, "k", scopes=["messages"])
    reload()
    scripted.on(model, claude(END | {"speed": "fast"}))

    reply = gateway.post(message(model, stream=True, speed="fast"), x_api_key=key)

    assert reply.status == status, reply.body
    if not priced:
        assert "speed=fast" in reply.json["error"]["message"]
        assert reply.headers["x-should-retry"] == "false"
