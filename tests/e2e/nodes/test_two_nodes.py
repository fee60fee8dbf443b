"""Two gateways with a shared PostgreSQL and Redis, under load."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.gateway.snapshot.config_snapshot import POLL_S
from tests.fakes.load.load_client import chat_response, tokens_of
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.nodes import Nodes
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.servers.redis_server import RedisServer
from tests.fakes.upstreams.script_steps import Script, WaitForGate, json_response
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.proxy.admin.live.live_fixtures import (
    SignedInUser,
    browser,
    live_request,
    streaming_then_stalled,
)
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.http_client import GatewayClient, read_until
from tests.waiting import until

from .late_signatures import assert_signature_returns

NAMES = ("POOR", "FAST", "FEW", "GOING", "ONCE", "STOP")
SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{(name + 'xx')[:6] * 8}" for name in NAMES}
SHARED = (
    """
[[routes]]
model = "load"
targets = [{ upstream = "chat" }]

[[routes]]
model = "slow"
targets = [{ upstream = "chat" }]

[[routes]]
model = "once"
targets = [{ upstream = "chat" }]

[[routes]]
model = "late"
targets = [{ upstream = "chat" }]

[[routes]]
model = "unfinished"
targets = [{ upstream = "chat" }]

[[teams]]
name = "poor"
budgets = [{ usd = "0.004" }]

[[teams]]
name = "fast"
limits = { rpm = 6 }

[[teams]]
name = "few"
limits = { concurrency = 5 }

[[teams]]
name = "going"

[[teams]]
name = "once"

[[teams]]
name = "stop"
"""
    + "".join(
        f'\n[[prices]]\nupstream = "chat"\nmodel = "{model}"\nsince = 2026-01-01\n'
        'usd = { input = "1", output = "10" }\n'
        for model in ("load", "slow", "unfinished")
    )
    + "".join(
        f'\n[[keys]]\nteam = "{name.lower()}"\nname = "k"\nsecret = {{ env = "BRIDGE_KEY_{name}" }}\n'
        for name in NAMES
    )
)
STREAMS = 8
ONCE = {"model": "once", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
GATE = threading.Event()
"""The model ``slow`` responds when this event is set."""


def script_for(request: ReceivedRequest) -> Script:
    if request.model == "load":
        return chat_response(request)
    if request.model == "unfinished":
        return streaming_then_stalled()
    if request.model == "late":
        return upstream_scripts.late_signature()
    if request.model == "once":
        return json_response(upstream_scripts.COMPLETION)
    return [WaitForGate(GATE), *json_response(upstream_scripts.COMPLETION)]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(script_for)
        yield running


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def nodes(
    upstream: ScriptedUpstream,
    postgres: Postgres,
    running_redis: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Nodes]:
    running_redis.client.flushall()
    config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, SHARED)
    config = config.replace(
        'name = "e2e"\nmodels', 'name = "e2e"\nbudgets = [{ usd = "1000" }]\nmodels'
    )
    folder = tmp_path_factory.mktemp("nodes")
    with Nodes(folder, config, postgres, running_redis, SECRETS).running() as running:
        yield running


def send_request(nodes: Nodes, number: int, name: str) -> int:
    """Send one request of a team to a node; return the status."""
    body = {"model": "slow", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{name}"], "content-type": "application/json"}
    node = nodes.all[number % len(nodes.all)]
    raw = json.dumps(body).encode()
    return node.request("POST", "/v1/messages", raw, headers, authorized=False).status


def send_concurrently(
    nodes: Nodes, upstream: ScriptedUpstream, names: Sequence[str], size: int
) -> tuple[dict[str, Counter[int]], float]:
    """Send ``size`` concurrent requests of each team to the nodes in turn.

    No accepted request ends before all are accepted or rejected. Return the statuses and that time.
    """
    statuses: dict[str, Counter[int]] = {name: Counter() for name in names}
    GATE.clear()
    before, start = len(upstream.requests_for("slow")), time.monotonic()
    with ThreadPoolExecutor(size * len(names)) as pool:
        pending = [
            (name, pool.submit(send_request, nodes, n, name)) for n in range(size) for name in names
        ]

        def all_decided() -> bool:
            accepted = len(upstream.requests_for("slow")) - before
            return accepted + sum(future.done() for _, future in pending) == len(pending)

        try:
            until(all_decided)
            duration = time.monotonic() - start
        finally:
            GATE.set()
        for name, future in pending:
            statuses[name][future.result()] += 1
    return statuses, duration


@pytest.mark.timeout(300)
def test_two_nodes_share_limits_and_budgets_under_load(nodes: Nodes, upstream: ScriptedUpstream):
    with nodes.load_clients(STREAMS) as load:
        statuses, duration = send_concurrently(nodes, upstream, ("POOR", "FAST", "FEW"), 20)

    fast = statuses.pop("FAST")
    assert statuses == {
        "POOR": {200: 3, 402: 17},  # of 0.004 dollars; each may cost 0.001 plus its prompt
        "FEW": {200: 5, 429: 15},
    }
    assert fast.keys() == {200, 429}
    assert 6 <= fast[200] <= 6 + duration * 6 / 60  # tokens refilled during the requests
    assert {each.ending for each in load.sent} == {"whole"}
    nodes.wait_until_drained()
    assert nodes.ledger_cost("poor") == 3 * (12_000 + 50_000)
    until(lambda: nodes.redis_counter("poor") == {"spent": nodes.ledger_cost("poor")})


@pytest.mark.timeout(300)
def test_revoked_key_is_rejected_by_both_nodes(nodes: Nodes):
    """Each node reads changes every second; the promise is five seconds."""
    assert POLL_S * 4 < 5
    assert {model_list_status(nodes, number) for number in range(2)} == {200}

    (key,) = call_api(nodes.all[0], "GET", "keys?team=going")["data"]
    call_api(nodes.all[0], "DELETE", f"keys/{key['id']}")

    until(lambda: {model_list_status(nodes, number) for number in range(2)} == {401})


def model_list_status(nodes: Nodes, number: int) -> int:
    """Return the status of a request that needs the key and costs nothing."""
    headers = {"x-api-key": SECRETS["BRIDGE_KEY_GOING"]}
    return nodes.all[number].request("GET", "/v1/models", None, headers, authorized=False).status


@pytest.mark.timeout(300)
def test_late_signature_of_one_node_returns_by_the_other(nodes: Nodes, upstream: ScriptedUpstream):
    headers = {"x-api-key": SECRETS["BRIDGE_KEY_ONCE"], "x-claude-code-session-id": "two-nodes"}
    assert_signature_returns(upstream, [nodes.all[0], nodes.all[1], nodes.all[0]], headers)


@pytest.mark.timeout(300)
def test_running_request_is_visible_and_stoppable_from_the_other_node(nodes: Nodes):
    person = SignedInUser(nodes.all[1])

    def shown() -> list[dict[str, Any]]:
        rows = json.loads(person.get("/admin/live/rows/").body)["rows"]
        return [row for row in rows if row["model"] == "unfinished"]

    def stopped(url: str) -> bool:
        return person.post(url, accept="application/json").status == 200

    with browser(nodes.all[0]).open(live_request("unfinished")) as client:
        read_until(client, b"canary39")
        until(lambda: any(stopped(row["stop_url"]) for row in shown()))
        read_until(client, b"event: error")


PROMISED_S = 10
"""Each node reads changes once a second. Test machines are busy, so the tests wait longer."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "paused",
    [{"upstream": "chat"}, pytest.param({"model": "once"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_pause_made_on_one_node_and_its_end_act_on_the_other(nodes: Nodes, paused: Any):
    client = GatewayClient(nodes.all[1].port, SECRETS["BRIDGE_KEY_STOP"])
    assert client.post(ONCE).status == 200

    pause = call_api(nodes.all[0], "POST", "pauses", {**paused, "message": "back at noon"})
    until(lambda: client.post(ONCE).status == 529, PROMISED_S)
    rejected = client.post(ONCE)
    call_api(nodes.all[0], "DELETE", f"pauses/{pause['id']}")
    until(lambda: client.post(ONCE).status == 200, PROMISED_S)

    assert rejected.json["error"]["message"] == "back at noon"
    entries = call_api(nodes.all[1], "GET", f"audit?object_kind=pause&object_id={pause['id']}")
    assert [entry["action"] for entry in entries["data"]] == ["delete", "add"]
    assert {entry["actor"] for entry in entries["data"]} == {"key e2e/tests"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "stopped",
    [{"kind": "key", "name": "stop/k"},
     pytest.param({"kind": "team", "name": "stop"}, marks=pytest.mark.slow),
     pytest.param({"kind": "upstream", "name": "chat"}, marks=pytest.mark.slow)],
    ids=str,
)  # fmt: skip
def test_a_stop_made_on_one_node_ends_the_requests_of_the_other(nodes: Nodes, stopped: Any):
    """A stop needs no undo: the next request is served."""
    client = GatewayClient(nodes.all[1].port, SECRETS["BRIDGE_KEY_STOP"])

    with client.open(live_request("unfinished")) as running:
        read_until(running, b"canary39")
        call_api(nodes.all[0], "POST", "stop", stopped)
        running.settimeout(PROMISED_S)
        end = read_until(running, b"event: error")

    assert b"message_stop" not in end
    assert client.post(ONCE).status == 200
    entry = call_api(nodes.all[1], "GET", "audit?action=stop")["data"][0]
    assert (entry["object_kind"], entry["object"]) == (stopped["kind"], stopped["name"])
    assert entry["actor"] == "key e2e/tests"


def call_api(node: Gateway, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the reports API with the admin's key; return the decoded response."""
    raw = None if body is None else json.dumps(body).encode()
    answer = node.request(method, f"/api/v1/{path}", raw, {"content-type": "application/json"})
    assert answer.status < 300, answer.body
    return json.loads(answer.body) if answer.body else None


@pytest.mark.timeout(300)
def test_killed_node_loses_no_row_and_charges_nothing_twice(
    nodes: Nodes, upstream: ScriptedUpstream
):
    with nodes.load_clients(STREAMS) as load:
        wait_for_new_requests(upstream)
        nodes.kill(1)
        wait_for_new_requests(upstream)  # the other node serves
        nodes.all[1].start()
    verdict = nodes.verdict(load.sent, upstream)

    assert any(each.ending == "cut" for each in load.sent), "no request was running at the kill"
    assert verdict.faults == {}
    assert len(verdict.completed) > STREAMS
    charged = nodes.query_database(
        "SELECT sum(cost_nanousd) FROM proxy_exchange WHERE outcome = 'completed' "
        "AND team = (SELECT ledger_id FROM proxy_team WHERE name = 'e2e')"
    )[0]
    assert charged == sum(cost_of(number) for number in completed(nodes))
    until(lambda: nodes.redis_counter("e2e") == {"spent": nodes.ledger_cost("e2e")}, 60)
    assert "everything is as it was written" in nodes.all[0].manage("verifyledger")


@pytest.mark.timeout(300)
def test_rolling_restart_fails_no_request(nodes: Nodes, upstream: ScriptedUpstream):
    with nodes.load_clients(STREAMS) as load:
        for node in nodes.all:
            wait_for_new_requests(upstream)
            assert node.end_process() == 0
            node.start()
    verdict = nodes.verdict(load.sent, upstream)

    assert Counter(each.ending for each in load.sent).keys() == {"whole"}
    assert verdict.faults == {}
    assert verdict.completed >= verdict.sent


def wait_for_new_requests(upstream: ScriptedUpstream) -> None:
    """Wait until the upstream has received a new request for each client."""
    expected = len(upstream.requests) + STREAMS
    upstream.wait_until(lambda requests: len(requests) >= expected, within_s=60)


def cost_of(number: int) -> int:
    """Return the cost of one load request in nano-dollars."""
    tokens_in, tokens_out = tokens_of(number)
    return tokens_in * 1_000 + tokens_out * 10_000


def completed(nodes: Nodes) -> list[int]:
    """Return the numbers of the load requests with a completed row."""
    rows = nodes.all[0].rows().values()
    return [
        int(number)
        for row in rows
        if (number := (row["session_id"] or "").rpartition("-")[2]).isdigit()
        and row["outcome"] == "completed"
    ]
