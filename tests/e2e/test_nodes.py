"""Two gateways on one PostgreSQL and one Redis keep every promise together, under load."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.gateway.directory import POLL_S
from tests.fakes.crowd import chat_answer, tokens_of
from tests.fakes.gateway import toml_for
from tests.fakes.nodes import Nodes
from tests.fakes.redis_server import RedisServer, running_redis
from tests.fakes.steps import Hold, Script, json_answer
from tests.fakes.upstream import Asked, ScriptedUpstream
from tests.proxy.admin.live_world import PASSWORD, Person, asked, browser, held
from tests.proxy.gateway import scripts
from tests.proxy.gateway.browser import read_until
from tests.proxy.record.postgres import Postgres

__all__ = ["running_redis"]

NAMES = ("POOR", "FAST", "FEW", "GOING", "ONCE")
SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{(name + 'xx')[:6] * 8}" for name in NAMES}
SECRETS["BRIDGE_ADMIN_PASSWORD"] = PASSWORD
SHARED = (
    """
[[routes]]
model = "crowd"
targets = [{ upstream = "chat" }]

[[routes]]
model = "slow"
targets = [{ upstream = "chat" }]

[[routes]]
model = "once"
targets = [{ upstream = "chat" }]

[[routes]]
model = "held"
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
"""
    + "".join(
        f'\n[[prices]]\nupstream = "chat"\nmodel = "{model}"\nsince = 2026-01-01\n'
        'usd = { input = "1", output = "10" }\n'
        for model in ("crowd", "slow", "held")
    )
    + "".join(
        f'\n[[keys]]\nteam = "{name.lower()}"\nname = "k"\nsecret = {{ env = "BRIDGE_KEY_{name}" }}\n'
        for name in NAMES
    )
)
STREAMS = 12
DOOR = threading.Event()
"""The slow model answers when it is open."""


def script_for(request: Asked) -> Script:
    if request.model == "crowd":
        return chat_answer(request)
    if request.model == "held":
        return held()
    if request.model == "once":
        return json_answer(scripts.COMPLETION)
    return [Hold(DOOR), *json_answer(scripts.COMPLETION)]


@pytest.fixture(scope="module")
def player() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(script_for)
        yield running


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.fixture(scope="module")
def nodes(
    player: ScriptedUpstream,
    postgres: Postgres,
    running_redis: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Nodes]:
    running_redis.client.flushall()
    config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, SHARED)
    config = config.replace(
        'name = "e2e"\nmodels', 'name = "e2e"\nbudgets = [{ usd = "1000" }]\nmodels'
    )
    folder = tmp_path_factory.mktemp("nodes")
    with Nodes(folder, config, postgres, running_redis, SECRETS).running() as running:
        yield running


def ask(nodes: Nodes, number: int, name: str) -> int:
    """One request of this team to that node; the status."""
    body = {"model": "slow", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{name}"], "content-type": "application/json"}
    node = nodes.all[number % len(nodes.all)]
    raw = json.dumps(body).encode()
    return node.ask("POST", "/v1/messages", raw, headers, authorised=False).status


def rush(
    nodes: Nodes, player: ScriptedUpstream, names: Sequence[str], size: int
) -> tuple[dict[str, Counter[int]], float]:
    """So many requests of each team at the same moment, to the nodes in turn.

    None that is let in ends before all were at the door; also returns how long that took.
    """
    seen: dict[str, Counter[int]] = {name: Counter() for name in names}
    DOOR.clear()
    before, began = len(player.asked_for("slow")), time.monotonic()
    with ThreadPoolExecutor(size * len(names)) as pool:
        asked = [(name, pool.submit(ask, nodes, n, name)) for n in range(size) for name in names]

        def judged() -> bool:
            let_in = len(player.asked_for("slow")) - before
            return let_in + sum(answered.done() for _, answered in asked) == len(asked)

        try:
            until(judged)
            lasted = time.monotonic() - began
        finally:
            DOOR.set()
        for name, answered in asked:
            seen[name][answered.result()] += 1
    return seen, lasted


def until(condition: Callable[[], bool], within_s: float = 90) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_limits_and_budgets_are_those_of_one_gateway_while_streams_run(
    nodes: Nodes, player: ScriptedUpstream
):
    with nodes.crowd(STREAMS) as crowd:
        seen, lasted = rush(nodes, player, ("POOR", "FAST", "FEW"), 20)

    fast = seen.pop("FAST")
    assert seen == {
        "POOR": {200: 3, 402: 17},  # of 0.004 dollars, each may cost 0.001 and its prompt
        "FEW": {200: 5, 429: 15},
    }
    assert fast.keys() == {200, 429}
    assert 6 <= fast[200] <= 6 + lasted * 6 / 60  # what has come back meanwhile
    assert {each.ending for each in crowd.sent} == {"whole"}
    nodes.drained()
    assert spent(nodes, "poor") == 3 * (12_000 + 50_000)
    until(lambda: counted(nodes, "poor") == {"spent": spent(nodes, "poor")})


@pytest.mark.timeout(300)
def test_a_revoked_key_dies_on_both_nodes_at_their_next_look(nodes: Nodes):
    """Within five seconds, that is, unless the machine is too busy to look each second."""
    assert POLL_S * 4 < 5
    assert {_looked(nodes, number) for number in range(2)} == {200}

    nodes.all[0].manage(
        "shell", "-c",
        "from proxy.models import ApiKey; from django.utils.timezone import now\n"
        "key = ApiKey.objects.get(team__name='going'); key.revoked = now(); key.save()",
    )  # fmt: skip

    until(lambda: {_looked(nodes, number) for number in range(2)} == {401})


def _looked(nodes: Nodes, number: int) -> int:
    """The status of a request that costs nothing and needs the key all the same."""
    headers = {"x-api-key": SECRETS["BRIDGE_KEY_GOING"]}
    return nodes.all[number].ask("GET", "/v1/models", None, headers, authorised=False).status


@pytest.mark.timeout(300)
def test_an_idempotency_key_is_answered_once_by_all_nodes(nodes: Nodes, player: ScriptedUpstream):
    body = {"model": "once", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {
        "x-api-key": SECRETS["BRIDGE_KEY_ONCE"],
        "content-type": "application/json",
        "idempotency-key": "one and the same",
    }
    raw = json.dumps(body).encode()
    replies = [nodes.all[0].ask("POST", "/v1/messages", raw, headers, authorised=False)]

    def answered() -> bool:
        """The first one is remembered just after its client has it."""
        reply = nodes.all[1].ask("POST", "/v1/messages", raw, headers, authorised=False)
        if reply.status != 409:
            replies.append(reply)
        return len(replies) > 1

    until(answered)

    assert [reply.status for reply in replies] == [200, 200]
    assert replies[0].body == replies[1].body
    assert [reply.headers.get("idempotent-replayed") for reply in replies] == [None, "true"]
    assert len([each for each in player.asked if each.model == "once"]) == 1


@pytest.mark.timeout(300)
def test_what_runs_on_one_node_is_seen_and_stopped_from_the_other(nodes: Nodes):
    person = Person(nodes.all[1])

    def shown() -> list[dict[str, Any]]:
        rows = json.loads(person.get("/admin/live/rows/").body)["rows"]
        return [row for row in rows if row["model"] == "held"]

    def stopped(url: str) -> bool:
        return person.post(url, accept="application/json").status == 200

    with browser(nodes.all[0]).open(asked("held")) as client:
        read_until(client, b"canary39")
        until(lambda: any(stopped(row["stop_url"]) for row in shown()))
        read_until(client, b"event: error")


@pytest.mark.timeout(300)
def test_a_node_killed_under_load_loses_nothing_and_charges_nothing_twice(
    nodes: Nodes, player: ScriptedUpstream
):
    with nodes.crowd(STREAMS) as crowd:
        under_load(player)
        nodes.kill(1)
        under_load(player)  # the other one serves meanwhile
        nodes.all[1].start()
    verdict = nodes.verdict(crowd.sent, player)

    assert any(each.ending == "cut" for each in crowd.sent), "nothing ran when it was killed"
    assert verdict.faults == {}
    assert len(verdict.completed) > STREAMS
    charged = nodes.ask_database(
        "SELECT sum(cost_nanousd) FROM proxy_exchange WHERE team = 'e2e' AND outcome = 'completed'"
    )[0]
    assert charged == sum(cost_of(number) for number in completed(nodes))
    until(lambda: counted(nodes, "e2e") == {"spent": spent(nodes, "e2e")}, 60)
    assert "everything is as it was written" in nodes.all[0].manage("verifyledger")


@pytest.mark.timeout(300)
def test_a_rolling_restart_is_felt_by_no_client(nodes: Nodes, player: ScriptedUpstream):
    with nodes.crowd(STREAMS) as crowd:
        for node in nodes.all:
            under_load(player)
            assert node.stop(within_s=60) == 0
            node.start()
    verdict = nodes.verdict(crowd.sent, player)

    assert Counter(each.ending for each in crowd.sent).keys() == {"whole"}
    assert verdict.faults == {}
    assert verdict.completed >= verdict.sent


def under_load(player: ScriptedUpstream) -> None:
    """Wait until every client has asked for something new."""
    busy = len(player.asked) + STREAMS
    player.wait_until(lambda asked: len(asked) >= busy, within_s=60)


def cost_of(number: int) -> int:
    """Nano-dollars of one request of the crowd."""
    tokens_in, tokens_out = tokens_of(number)
    return tokens_in * 1_000 + tokens_out * 10_000


def completed(nodes: Nodes) -> list[int]:
    """The numbers of the crowd's requests whose rows say that their answer was whole."""
    rows = nodes.all[0].rows().values()
    return [
        int(row["session_id"].rpartition("-")[2])
        for row in rows
        if row["session_id"] and row["outcome"] == "completed"
    ]


def spent(nodes: Nodes, team: str) -> int:
    """Nano-dollars, as the ledger has them."""
    question = "SELECT coalesce(sum(cost_nanousd), 0) FROM proxy_exchange WHERE team = %s"
    return int(nodes.ask_database(question, team)[0])


def counted(nodes: Nodes, team: str) -> dict[str, int]:
    """What the counter in Redis says: ``spent`` in nano-dollars, and the holds that there are."""
    question = (
        "SELECT b.id FROM proxy_budget b JOIN proxy_team t ON t.id = b.team_id WHERE t.name = %s"
    )
    (budget,) = nodes.ask_database(question, team)
    found: Counter[str] = Counter()
    for key in nodes.redis.client.scan_iter(f"bridge:budget:{budget}:*"):
        for field, text in nodes.redis.client.hgetall(key).items():
            found[field.decode()] += int(text.split()[0])
    return dict(found)
