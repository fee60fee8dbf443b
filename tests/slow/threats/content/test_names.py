"""Names that clients and upstreams choose: limited in length and in number."""

import time

import pytest
from django.utils.timezone import now
from prometheus_client import generate_latest

from proxy.gateway.admission import cooldown
from proxy.gateway.endpoints import health
from proxy.gateway.endpoints.count_tokens import MAX_MODELS, CorrectionFactors
from proxy.gateway.request.request import MAX_NOTES
from proxy.metrics.bounded_labels import MAX_LABEL_SETS
from proxy.metrics.connections import count_closed
from proxy.metrics.definitions import METRICS
from proxy.models import BodyKeyUse, Exchange, Revision, Upstream
from tests.fakes.upstreams.script_steps import stream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import PATIENT, message, row
from translator.anthropic.validators import MAX_MODEL, MAX_NAME
from translator.dialect import MAX_KIND_CHARACTERS, MAX_KINDS, OTHERS, UpstreamError

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
TOO_MANY = health.MOST_NAMED + 5
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


def assert_rejected(reply, name):
    assert reply.status == 400, reply.body
    error = reply.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{name}: ")
    assert len(reply.body) < 1_000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LONG_NAMES)
def test_too_long_name_is_rejected_with_its_path(gateway, name, path):
    assert_rejected(gateway.post(message("chat-x") | LONG_NAMES[name], path), name)


def test_name_of_maximum_length_is_stored_completely(gateway, scripted):
    model = "chat-".ljust(MAX_MODEL, "m")
    scripted.on(model, upstream_scripts.chat())

    reply = gateway.post(message(model))

    assert reply.status == 200
    assert row(reply.id).model_requested == model


def test_model_name_of_a_megabyte_is_not_stored(gateway):
    for number in range(3):
        model = f"chat-{number}" + "x" * 2**20
        reply = gateway.post(message(model))
        assert_rejected(reply, "model")
        gateway.post(message(model), "/v1/messages/count_tokens")
        assert (
            gateway.request(
                "GET", f"/v1/models/{'y' * 20_000}", None, {"x-api-key": gateway.key}
            ).status
            == 404
        )

    assert len(Exchange.objects.get(pk=row(reply.id).pk).model_requested) <= MAX_MODEL
    assert len(gateway.request("GET", "/readyz").body) < READYZ_BYTES
    assert len(gateway.request("GET", "/metrics").body) < METRICS_BYTES


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("x-claude-code-session-id", 200),
        ("x-claude-code-agent-id", 200),
        ("x-claude-code-parent-agent-id", 200),
    ],
)
def test_too_long_identifier_header_is_rejected_not_cut(gateway, scripted, name, limit):
    scripted.on("chat-named", upstream_scripts.chat())
    field = name.replace("-", "_")

    assert gateway.post(message("chat-named"), **{field: "k" * limit}).status == 200
    long = gateway.post(message("chat-named"), **{field: "k" * (limit + 1)})
    assert_rejected(long, name)
    assert str(limit + 1) in long.json["error"]["message"]
    for unusual_text in ("caf\u00e9", "a\tb"):
        assert_rejected(gateway.post(message("chat-named"), **{field: unusual_text}), name)


def test_an_idempotency_key_is_ignored_as_by_anthropic(gateway, scripted):
    scripted.on("chat-ignored-key", *[upstream_scripts.chat()] * 2)
    same = {"idempotency_key": "k" * 300}

    replies = [gateway.post(message("chat-ignored-key"), **same) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 200]
    assert len(scripted.requests_for("chat-ignored-key")) == 2


@pytest.fixture
def many_errors(gateway, reload):
    """Add upstreams without a secret, upstreams with names that are too long, and missing keys."""
    missing = {"env": "NO_SUCH_VARIABLE_HERE"}
    Upstream.objects.bulk_create(
        Upstream(
            name=name, dialect="chat", base_url="http://u/v1", secret=missing, timeouts=PATIENT
        )
        for number in range(TOO_MANY)
        for name in (f"{number}-".ljust(60, "b"), f"{number}-" + "b" * 10_000)
    )
    BodyKeyUse.objects.bulk_create(BodyKeyUse(key=f"{n:08x}", since=now()) for n in range(100))
    Revision.bump()
    reload()
    yield
    BodyKeyUse.objects.all().delete()
    Upstream.objects.filter(secret=missing).delete()
    reload()


@pytest.mark.usefixtures("many_errors")
def test_readyz_stays_short_with_many_models_and_errors(gateway, scripted):
    for number in range(60):
        model = f"chat-{number:02}-".ljust(MAX_MODEL, "n")
        scripted.on(model, upstream_scripts.chat())
        assert gateway.post(message(model)).status == 200

    reply = gateway.request("GET", "/readyz")

    assert len(reply.json["unpriced_models"]) >= 50
    degraded = reply.json["degraded"]
    assert f"upstreams that cannot be used: {TOO_MANY}" in degraded
    assert f"rows that cannot be read: {TOO_MANY}" in degraded
    assert len(degraded) == 2 * (health.MOST_NAMED + 1) + 1
    assert max(map(len, degraded)) == health.LONGEST_NAMED
    assert len(reply.body) < READYZ_BYTES


def test_metrics_are_short_whatever_labels_hold():
    size = 0
    for metric in METRICS:
        # A copy: the label sets of the metric itself would stay for the tests that follow.
        copy = type(metric)(metric.full_name, metric.family.documentation, metric.label_names)
        for number in range(MAX_LABEL_SETS + 10 if metric.label_names else 1):
            labels = tuple(f"{number}" + '"\\' * 500 for _ in metric.label_names)
            child = copy.labels(*labels) if labels else copy
            child.observe(1.0) if metric.family.type == "histogram" else child.inc()
        [family] = copy.collect()
        assert len({(*sample.labels.items(),) for sample in family.samples}) <= 17 * (
            MAX_LABEL_SETS + 1
        )
        size += len(generate_latest(copy))

    assert size < 3 * METRICS_BYTES  # most of it is 1,000 label sets of histograms


def test_metrics_are_added_up_once_a_second(gateway):
    texts, began = set(), time.monotonic()
    for _ in range(20):
        count_closed("test_metrics_cache", None)  # so that each exposition is a new text
        texts.add(gateway.request("GET", "/metrics").body)
    seconds = time.monotonic() - began

    # An earlier text may be in the cache at the beginning, and the first second begins at any time.
    assert len(texts) <= 2 + seconds


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_unknown_event_types_are_limited_in_number_and_length(gateway, scripted, dialect):
    unusual_text = [
        upstream_scripts.sse(
            {"type": f"unknown.{n}." + "x" * 1_000, "object": f"unknown.{n}." + "x" * 1_000}
        )
        for n in range(2 * MAX_KINDS)
    ]
    model = f"{dialect}-invents"
    valid_events = {
        "chat": upstream_scripts.chat_events,
        "responses": upstream_scripts.responses_events,
    }.get(dialect)
    scripted.on(model, stream(b"".join(unusual_text + (valid_events() if valid_events else []))))

    reply = gateway.post(message(model, stream=True))

    unknown_events = row(reply.id).unknown_events
    assert len(unknown_events) == MAX_KINDS + 1
    assert unknown_events[OTHERS] == MAX_KINDS
    assert max(map(len, unknown_events)) <= MAX_KIND_CHARACTERS


def test_notes_of_a_request_are_limited(gateway, scripted):
    scripted.on("chat-noted", upstream_scripts.chat())
    blocks = [
        {
            "type": "document",
            "source": {"type": "text", "data": "x"},
            "citations": {"enabled": True},
        }
        for _ in range(3 * MAX_NOTES)
    ]

    reply = gateway.post(message("chat-noted", messages=[{"role": "user", "content": blocks}]))

    assert reply.status == 200
    notes = row(reply.id).notes
    assert len(notes) == MAX_NOTES + 1


def test_cooldown_entries_are_limited():
    cooling = cooldown.Cooldown(lambda: 0.0)
    error = UpstreamError(status=429, error_type="rate_limit_error", message="", retry_after_s=9)
    for number in range(cooldown.MAX_STREAKS + 10):
        cooling.record_failure(("u", f"m{number}"), error)

    assert len(cooling.streaks) == cooldown.MAX_STREAKS
    assert cooling.is_cooling(("u", f"m{cooldown.MAX_STREAKS}"))
    assert not cooling.is_cooling(("u", "m0"))


async def test_calibration_factors_in_memory_are_limited():
    computed = []
    factors = CorrectionFactors(lambda _, model: computed.append(model) or 1.5)
    for number in range(MAX_MODELS + 10):
        await factors.factor("u", f"m{number}")
    assert len(factors) == MAX_MODELS

    for number in (10, MAX_MODELS + 9):  # the oldest and the newest one in memory
        await factors.factor("u", f"m{number}")
    assert len(computed) == MAX_MODELS + 10
    await factors.factor("u", "m9")
    assert computed[-1] == "m9"
