"""The /metrics page and the JSON log of a gateway with two processes."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.gateway.endpoints.health import METRICS_CACHE_S
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import html_response, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

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
REQUESTS = 24


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with ScriptedUpstream() as upstream:
        upstream.on("m-good", json_response(upstream_scripts.COMPLETION))
        upstream.on("m-bad", html_response(502))
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        environment = {"BRIDGE_LOG_FORMAT": "json"}
        new_gateway = Gateway(tmp_path / "gateway", config, environment, workers=2)
        with new_gateway as running:
            yield running


def send_request(gateway: Gateway, model: str, **more) -> tuple[int, str]:
    body = {
        "model": model, "max_tokens": 10, "top_k": 3,
        "messages": [{"role": "user", "content": PROMPT}],
    }  # fmt: skip
    raw = json.dumps(body).encode()
    reply = gateway.request(
        "POST", "/v1/messages", raw, {"content-type": "application/json"}, **more
    )
    return reply.status, reply.headers["request-id"]


def metric_sums(gateway: Gateway) -> Counter[str]:
    """Return the sum of each metric over its labels, from either worker."""
    text = gateway.request("GET", "/metrics", authorized=False).body.decode()
    sums_found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums_found[sample.name] += sample.value
            for name, value in sample.labels.items():
                sums_found[f"{sample.name} {name}={value}"] += sample.value
    return sums_found


def log_entries(gateway: Gateway) -> list[dict]:
    return [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]


def test_metrics_and_logs_count_each_request_of_both_workers_once(gateway: Gateway):
    """Also when a worker has died; its successor adds to the same counters."""
    good = [send_request(gateway, "m-good") for _ in range(REQUESTS)]
    bad = send_request(gateway, "m-bad")
    unauthorized = send_request(gateway, "m-good", authorized=False)
    assert {status for status, _ in good} == {200}
    assert (bad[0], unauthorized[0]) == (502, 401)

    assert_each_counted_once(sums_of_both_workers(gateway, REQUESTS + 2))
    assert_each_logged_once(gateway, [id_ for _, id_ in good], bad[1], unauthorized[1])
    assert_counters_do_not_fall_when_a_worker_dies(gateway, REQUESTS + 2)


def sums_of_both_workers(gateway: Gateway, requests: int) -> Counter[str]:
    """Wait until both workers are reported, and this number of requests; any of them answers."""
    deadline = time.monotonic() + 60
    in_a_row = 0
    while in_a_row < 6:  # the second worker may start late
        assert time.monotonic() < deadline
        sums = metric_sums(gateway)
        in_a_row = in_a_row + 1 if is_complete(sums, requests) else 0
    return sums


def assert_each_counted_once(sums: Counter[str]) -> None:
    assert sums["bridge_requests_total outcome=completed"] == REQUESTS
    assert sums["bridge_requests_total status=502"] == 1
    assert sums["bridge_requests_total status=401"] == 1
    assert sums["bridge_requests_total route=m-*"] == REQUESTS + 1
    assert sums["bridge_tokens_total class=input"] >= REQUESTS * 12
    assert sums["bridge_cost_usd_total"] == pytest.approx(REQUESTS * 0.000_062)
    assert sums["bridge_notes_total field=top_k"] == REQUESTS + 1
    assert sums["bridge_first_byte_seconds_count"] == REQUESTS
    assert sums["bridge_overhead_seconds_count"] == REQUESTS + 1
    assert sums["bridge_in_flight_requests"] == 0


def assert_each_logged_once(gateway: Gateway, good: list[str], bad: str, unauthorized: str) -> None:
    access = [line for line in log_entries(gateway) if line["logger"] == "proxy.access"]
    by_id = {line["request_id"]: line for line in access}
    assert sorted(line["request_id"] for line in access) == sorted([*good, bad, unauthorized])
    entry = by_id[good[0]]
    assert entry["status"] == 200
    assert entry["outcome"] == "completed"
    assert (entry["team"], entry["key"], entry["upstream"]) == ("e2e", "tests", "chat")
    assert (entry["input_tokens"], entry["output_tokens"]) == (12, 5)
    assert entry["cost_usd"] == "0.000062"
    assert by_id[unauthorized]["status"] == 401
    failure = [line for line in log_entries(gateway) if line["level"] == "WARNING"]
    assert {line["request_id"] for line in failure} == {bad}
    for secret in (gateway.key, "sk-upstream-of-the-tests", PROMPT):
        assert secret not in gateway.log


def assert_counters_do_not_fall_when_a_worker_dies(gateway: Gateway, requests: int) -> None:
    time.sleep(METRICS_CACHE_S)  # the other worker may still answer with its older text until then
    old = workers(gateway)
    os.kill(old[0], signal.SIGKILL)

    deadline = time.monotonic() + 60
    in_a_row = 0
    while in_a_row < 6:  # any of the two workers answers
        assert time.monotonic() < deadline
        found = metric_sums(gateway)
        assert found["bridge_requests_total"] == requests
        assert found["bridge_first_byte_seconds_count"] == REQUESTS
        is_replaced = len(set(workers(gateway)) - set(old)) == 1
        in_a_row = in_a_row + 1 if is_replaced and is_complete(found, requests) else 0

    send_request(gateway, "m-good")
    until(lambda: is_complete(metric_sums(gateway), requests + 1))


def is_complete(found: Counter[str], requests: int) -> bool:
    """Whether both workers are reported, and this number of requests."""
    both = {"bridge_in_flight_requests worker=0", "bridge_in_flight_requests worker=1"}
    return found["bridge_requests_total"] == requests and both <= set(found)


def workers(gateway: Gateway) -> list[int]:
    """The process ids of the workers: uvicorn starts them with ``spawn_main``."""
    pid = gateway.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(child) for child in children if b"spawn_main" in command_line(child)]


def command_line(pid: str) -> bytes:
    """Return the command line of a process; empty if it has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
