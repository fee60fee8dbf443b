"""What an operator sees of a gateway of two processes: /metrics and JSON logs."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.steps import html_answer, json_answer
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

ROUTES = """
[[routes]]
model = "m-*"
targets = [{ upstream = "chat" }]

[[prices]]
upstream = "chat"
model = "m-good"
since = 2026-01-01
usd = { input = "1", output = "10" }
"""
PROMPT = "the secret of the pyramids"
ASKED = 24


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with ScriptedUpstream() as player:
        player.on("m-good", json_answer(scripts.COMPLETION))
        player.on("m-bad", html_answer(502))
        config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, ROUTES)
        environment = {"BRIDGE_LOG_FORMAT": "json"}
        made = Gateway(tmp_path / "gateway", config, environment, workers=2)
        with made as running:
            yield running


def ask(gateway: Gateway, model: str, **more) -> tuple[int, str]:
    body = {
        "model": model, "max_tokens": 10, "top_k": 3,
        "messages": [{"role": "user", "content": PROMPT}],
    }  # fmt: skip
    raw = json.dumps(body).encode()
    reply = gateway.ask("POST", "/v1/messages", raw, {"content-type": "application/json"}, **more)
    return reply.status, reply.headers["request-id"]


def numbers(gateway: Gateway) -> Counter[str]:
    """Each metric's sum over its labels; a new connection, so either worker may answer."""
    text = gateway.ask("GET", "/metrics", authorised=False).body.decode()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] += sample.value
            for name, value in sample.labels.items():
                found[f"{sample.name} {name}={value}"] += sample.value
    return found


def lines(gateway: Gateway) -> list[dict]:
    return [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]


def test_metrics_and_logs_tell_every_request_of_both_workers_once(gateway: Gateway):
    good = [ask(gateway, "m-good") for _ in range(ASKED)]
    bad = ask(gateway, "m-bad")
    nobody = ask(gateway, "m-good", authorised=False)
    assert {status for status, _ in good} == {200}
    assert (bad[0], nobody[0]) == (502, 401)

    both = {"bridge_in_flight_requests worker=0", "bridge_in_flight_requests worker=1"}
    deadline = time.monotonic() + 60
    in_a_row = 0
    while in_a_row < 6:  # whichever worker answers, and the second one may be late to come up
        assert time.monotonic() < deadline
        told = numbers(gateway)
        whole = told["bridge_requests_total"] == ASKED + 2 and both <= set(told)
        in_a_row = in_a_row + 1 if whole else 0

    assert told["bridge_requests_total outcome=completed"] == ASKED
    assert told["bridge_requests_total status=502"] == 1
    assert told["bridge_requests_total status=401"] == 1
    assert told["bridge_requests_total route=m-*"] == ASKED + 1
    assert told["bridge_tokens_total class=input"] >= ASKED * 12
    assert told["bridge_cost_usd_total"] == pytest.approx(ASKED * 0.000_062)
    assert told["bridge_notes_total field=top_k"] == ASKED + 1
    assert told["bridge_first_byte_seconds_count"] == ASKED
    assert told["bridge_overhead_seconds_count"] == ASKED + 1
    assert told["bridge_in_flight_requests"] == 0

    access = [line for line in lines(gateway) if line["logger"] == "proxy.access"]
    assert sorted(line["request_id"] for line in access) == sorted(
        request for _, request in [*good, bad, nobody]
    )
    by_id = {line["request_id"]: line for line in access}
    one = by_id[good[0][1]]
    assert one["status"] == 200
    assert one["outcome"] == "completed"
    assert (one["team"], one["key"], one["upstream"]) == ("e2e", "tests", "chat")
    assert (one["input_tokens"], one["output_tokens"]) == (12, 5)
    assert one["cost_usd"] == "0.000062"
    assert by_id[nobody[1]]["status"] == 401
    failure = [line for line in lines(gateway) if line["level"] == "WARNING"]
    assert {line["request_id"] for line in failure} == {bad[1]}
    for secret in (gateway.key, "sk-upstream-of-the-tests", PROMPT):
        assert secret not in gateway.log
