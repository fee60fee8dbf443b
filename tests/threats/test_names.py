"""Names that clients and upstreams choose: short at the door, and few in every table."""

import dataclasses

import pytest

from proxy.gateway import cooldown, estimates, health, ledger
from proxy.gateway.directory import directory
from proxy.metrics import catalogue, tally
from proxy.models import Exchange
from tests.fakes.steps import stream
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message, row
from translator.anthropic.shapes import MAX_MODEL, MAX_NAME
from translator.dialect import UpstreamError
from translator.unknown_events import LONGEST, MOST_KINDS, OTHERS

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
READYZ_BYTES = 64 * 1024
METRICS_BYTES = 8 * 2**20
LONG = "x" * (MAX_NAME + 1)
LONG_NAMES = {
    "model": {"model": "chat-" + "x" * MAX_MODEL},
    "tools.0.name": {"tools": [{"name": LONG, "input_schema": {"type": "object"}}]},
    "tool_choice.name": {"tool_choice": {"type": "tool", "name": LONG}},
    "metadata.user_id": {"metadata": {"user_id": LONG}},
    "mcp_servers.0.name": {"mcp_servers": [{"type": "url", "url": "https://m", "name": LONG}]},
}


def refused(reply, name):
    assert reply.status == 400, reply.body
    error = reply.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{name}: ")
    assert len(reply.body) < 1_000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LONG_NAMES)
def test_a_long_name_is_refused_by_its_path(gateway, name, path):
    refused(gateway.post(message("chat-x") | LONG_NAMES[name], path), name)


def test_a_name_of_the_longest_kind_is_served_and_kept_whole(gateway, scripted):
    model = "chat-".ljust(MAX_MODEL, "m")
    scripted.on(model, scripts.chat())

    reply = gateway.post(message(model))

    assert reply.status == 200
    assert row(reply.id).model_requested == model


def test_a_model_of_a_megabyte_is_in_no_table(gateway):
    for number in range(3):
        model = f"chat-{number}" + "x" * 2**20
        reply = gateway.post(message(model))
        refused(reply, "model")
        gateway.post(message(model), "/v1/messages/count_tokens")
        assert (
            gateway.ask(
                "GET", f"/v1/models/{'y' * 20_000}", None, {"x-api-key": gateway.key}
            ).status
            == 404
        )

    assert len(Exchange.objects.get(pk=row(reply.id).pk).model_requested) <= MAX_MODEL
    assert len(gateway.ask("GET", "/readyz").body) < READYZ_BYTES
    assert len(gateway.ask("GET", "/metrics").body) < METRICS_BYTES


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("idempotency-key", 255),
        ("x-claude-code-session-id", 200),
        ("x-claude-code-agent-id", 200),
        ("x-claude-code-parent-agent-id", 200),
    ],
)
def test_a_header_that_names_something_is_never_cut(gateway, scripted, name, most):
    scripted.on("chat-named", scripts.chat())
    field = name.replace("-", "_")

    assert gateway.post(message("chat-named"), **{field: "k" * most}).status == 200
    long = gateway.post(message("chat-named"), **{field: "k" * (most + 1)})
    refused(long, name)
    assert str(most + 1) in long.json["error"]["message"]
    for odd in ("caf\u00e9", "a\tb"):
        refused(gateway.post(message("chat-named"), **{field: odd}), name)


def test_two_idempotency_keys_are_never_one(gateway, scripted):
    scripted.on("chat-two-keys", scripts.chat())
    first = gateway.post(message("chat-two-keys"), idempotency_key="i" * 254 + "1")
    other = gateway.post(message("chat-two-keys", top_p=1), idempotency_key="i" * 254 + "2")

    assert (first.status, other.status) == (200, 200)


def test_the_probe_is_short_whatever_it_has_to_tell(gateway, scripted, monkeypatch):
    for number in range(60):
        model = f"chat-{number:02}-".ljust(MAX_MODEL, "n")
        scripted.on(model, scripts.chat())
        assert gateway.post(message(model)).status == 200
    odd = {f"{number}" + "b" * 10_000: "" for number in range(1_000)}
    crowded = dataclasses.replace(directory.snapshot, broken=odd, unread=(*odd,))
    monkeypatch.setattr(directory, "snapshot", crowded)

    reply = gateway.ask("GET", "/readyz")

    assert len(reply.json["unpriced_models"]) >= 50
    assert "upstreams that cannot be used: 1000" in reply.json["degraded"]
    assert len(reply.body) < READYZ_BYTES


def test_the_numbers_are_short_whatever_labels_hold():
    hostile = tally.Tally()
    for metric in catalogue.CATALOGUE:
        for number in range(2 * tally.MOST_SERIES):
            labels = tuple(f"{number}" + '"\\' * 5_000 for _ in metric.labels)
            if metric.kind == "histogram":
                hostile.observe(metric, 1.0, labels)
            else:
                hostile.add(metric, labels)

    text = "\n".join(tally.exposition(hostile.series))

    assert max(map(len, hostile.series.values())) <= tally.MOST_SERIES + 1
    assert len(text) < 2 * METRICS_BYTES


def test_the_numbers_are_added_up_once_a_second(gateway, monkeypatch):
    made = []
    monkeypatch.setattr(health, "_numbers", health._Numbers())
    monkeypatch.setattr(health, "NUMBERS_FOR_S", 3_600)
    monkeypatch.setattr(health, "prometheus", lambda *_: made.append(1) or "")

    texts = {gateway.ask("GET", "/metrics").body for _ in range(5)}

    assert (len(made), len(texts)) == (1, 1)


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_an_upstream_that_invents_kinds_of_events_fills_nothing(gateway, scripted, dialect):
    odd = [
        scripts.sse({"type": f"odd.{n}." + "x" * 1_000, "object": f"odd.{n}." + "x" * 1_000})
        for n in range(2 * MOST_KINDS)
    ]
    model = f"{dialect}-invents"
    sound = {"chat": scripts.chat_events, "responses": scripts.responses_events}.get(dialect)
    scripted.on(model, stream(b"".join(odd + (sound() if sound else []))))

    reply = gateway.post(message(model, stream=True))

    kept = row(reply.id).unknown_events
    assert len(kept) == MOST_KINDS + 1
    assert kept[OTHERS] == MOST_KINDS
    assert max(map(len, kept)) <= LONGEST


def test_a_request_with_much_to_note_has_few_notes(gateway, scripted):
    scripted.on("chat-noted", scripts.chat())
    blocks = [
        {
            "type": "document",
            "source": {"type": "text", "data": "x"},
            "citations": {"enabled": True},
        }
        for _ in range(3 * ledger.MOST_NOTES)
    ]

    reply = gateway.post(message("chat-noted", messages=[{"role": "user", "content": blocks}]))

    assert reply.status == 200
    notes = row(reply.id).notes
    assert len(notes) == ledger.MOST_NOTES + 1


def test_few_targets_are_remembered_as_failing():
    cooling = cooldown.Cooldown(lambda: 0.0)
    error = UpstreamError(status=429, error_type="rate_limit_error", message="", retry_after_s=9)
    for number in range(cooldown.MOST_KEPT + 10):
        cooling.failed(("u", f"m{number}"), error)

    assert len(cooling.troubles) == cooldown.MOST_KEPT
    assert cooling.is_cooling(("u", f"m{cooldown.MOST_KEPT}"))
    assert not cooling.is_cooling(("u", "m0"))


async def test_few_models_have_a_factor_in_memory(monkeypatch):
    monkeypatch.setattr(estimates, "_learn", lambda *_: 1.5)
    monkeypatch.setattr(estimates, "_learned_at", {})
    monkeypatch.setattr(estimates, "_factors", {})
    for number in range(estimates.MOST_KEPT + 10):
        await estimates.corrected("u", f"m{number}", 10)

    assert len(estimates._learned_at) == len(estimates._factors) == estimates.MOST_KEPT
