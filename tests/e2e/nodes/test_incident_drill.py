"""An incident: one upstream fails and one team is over its limits. /metrics shows which and why."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts

CONFIG = """
[[upstreams]]
name = "healthy"
dialect = "chat"
base_url = "{url}"
api_key = {{ env = "E2E_UPSTREAM_KEY" }}

[[upstreams]]
name = "failing"
dialect = "chat"
base_url = "{url}"
api_key = {{ env = "E2E_UPSTREAM_KEY" }}

[[routes]]
model = "m-good"
targets = [{{ upstream = "healthy" }}]

[[routes]]
model = "m-bad"
targets = [{{ upstream = "failing" }}]

[[prices]]
upstream = "healthy"
model = "m-good"
since = 2026-01-01
usd = {{ input = "1", output = "10" }}

[[prices]]
upstream = "failing"
model = "m-bad"
since = 2026-01-01
usd = {{ input = "1", output = "10" }}

[[teams]]
name = "e2e"
models = ["*"]

[[keys]]
team = "e2e"
name = "tests"
scopes = ["messages"]
secret = {{ env = "BRIDGE_KEY_E2E" }}

[[budgets]]
team = "e2e"
usd = "5"
period = "day"

[[keys]]
team = "e2e"
name = "limited"
scopes = ["messages"]
secret = {{ env = "LIMITED_KEY" }}
limits = {{ rpm = 1 }}
"""
LIMITED_KEY = "sk-br-" + "limi" * 12
GOOD, BAD, LIMITED = 3, 4, 3


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with ScriptedUpstream() as upstream:
        upstream.on("m-good", json_response(upstream_scripts.COMPLETION))
        overloaded = {"error": {"message": "too many requests are running", "type": "server_error"}}
        upstream.on("m-bad", json_response(overloaded, status=503))
        config = CONFIG.format(url=upstream.base_url)
        with Gateway(tmp_path / "gateway", config, {"LIMITED_KEY": LIMITED_KEY}) as running:
            yield running


def send(gateway: Gateway, model: str, key: str = "") -> int:
    body = {"model": model, "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
    reply = gateway.request("POST", "/v1/messages", json.dumps(body).encode(), headers)
    return reply.status


def scrape(gateway: Gateway) -> dict[str, float]:
    """Return the value of each sample; its labels are sorted, as in ``name{a=1,b=2}``."""
    text = gateway.request("GET", "/metrics", authorized=False).body.decode()
    return {
        sample.name + "{" + ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items())) + "}":
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


def test_metrics_name_the_upstream_the_team_and_the_limit(gateway: Gateway):
    assert {send(gateway, "m-good") for _ in range(GOOD)} == {200}
    assert [send(gateway, "m-bad") for _ in range(BAD)] == [529] * BAD
    limited = [send(gateway, "m-good", LIMITED_KEY) for _ in range(LIMITED)]
    assert limited == [200] + [429] * (LIMITED - 1)

    deadline = time.monotonic() + 60
    found = scrape(gateway)
    expected = GOOD + BAD + LIMITED
    while sum(v for name, v in found.items() if "bridge_requests_total" in name) < expected:
        assert time.monotonic() < deadline
        found = scrape(gateway)

    team = "bridge_team_requests_total{outcome=%s,team=e2e,upstream=%s}"
    assert found[team % ("completed", "healthy")] == GOOD + 1
    assert found[team % ("upstream_error", "failing")] == BAD
    assert found[team % ("refused", "")] == LIMITED - 1
    errors = {k: v for k, v in found.items() if k.startswith("bridge_upstream_errors_total")}
    assert set(errors.values()) == {BAD}
    assert all("upstream=failing" in name for name in errors)
    assert found["bridge_refusals_total{reason=rpm}"] == LIMITED - 1
    assert found["bridge_upstream_cooldowns{upstream=failing}"] == 1
    assert found["bridge_team_first_byte_seconds_count{team=e2e}"] == GOOD + 1
    assert found["bridge_request_seconds_count{endpoint=messages,upstream=failing}"] == BAD
    assert found["bridge_budget_limit_usd{period=day,team=e2e}"] == 5
    assert 4.9 < found["bridge_budget_remaining_usd{period=day,team=e2e}"] < 5
    assert found["bridge_data_free_bytes{}"] > 0
    assert found["bridge_degraded{}"] == 0
    assert found["process_resident_memory_bytes{worker=0}"] > 20e6
    [build] = [name for name in found if name.startswith("bridge_build_info")]
    assert "version=" in build
    assert not any(name.startswith("bridge_redis_up{") for name in found)
