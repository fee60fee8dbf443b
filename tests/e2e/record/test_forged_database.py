"""A database administrator changes the SQLite file of a running gateway: verifyledger finds it.

tests/proxy/ledger/maintenance/test_forgeries.py has the forgeries that know how links are made;
here are those that a person with an SQL prompt tries.
"""

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Any, Final

import pytest

from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

SECRETS: Final = {f"BRIDGE_KEY_{name}": f"sk-br-{name * 12}" for name in ("ALFA", "BETA")}
TEAMS: Final = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]
""" + "".join(
    f'[[teams]]\nname = "{name}"\n'
    f'[[keys]]\nteam = "{name}"\nname = "k"\nsecret = {{ env = "BRIDGE_KEY_{name.upper()}" }}\n'
    for name in ("alfa", "beta")
)
REQUESTS: Final = 200
ROLLUPS: Final = ("usageday", "usagebycallerday", "stopreasonday")
PARTS: Final = {
    "alfa": "(SELECT ledger_id FROM proxy_team WHERE name = 'alfa')",
    "beta": "(SELECT ledger_id FROM proxy_team WHERE name = 'beta')",
    "one": """(SELECT min(proxy_exchange.id) FROM proxy_exchange
               JOIN proxy_team ON proxy_team.ledger_id = team WHERE proxy_team.name = 'alfa')""",
    "last": "(SELECT max(sequence) FROM proxy_hashchainlink)",
    "first_entry": "(SELECT min(id) FROM proxy_auditentry)",
}
"""What the SQL below names with ``$``."""
REWRITE: Final = "UPDATE proxy_exchange SET team = $beta WHERE id = $one;"
DELETE_TRANSCRIPT: Final = "DELETE FROM proxy_transcript WHERE exchange_id = $one;"
DELETE_ROW: Final = "DELETE FROM proxy_exchange WHERE id = $one;"
APPEND_LINK: Final = """
CREATE TEMP TABLE forged AS SELECT * FROM proxy_hashchainlink WHERE sequence = $last;
UPDATE forged SET sequence = sequence + 1, exchange_id = $one;
INSERT INTO proxy_hashchainlink SELECT * FROM forged;
"""
COPY_ROW: Final = """
CREATE TEMP TABLE forged AS SELECT * FROM proxy_exchange WHERE id = $one;
UPDATE forged SET id = 'req_01ARZ3NDEKTSV4RRFFQ69G5FAV';
INSERT INTO proxy_exchange SELECT * FROM forged;
"""
MOVE: Final = "UPDATE $table SET team = CASE team WHEN $alfa THEN $beta ELSE $alfa END;"
HISTOGRAM: Final = """
UPDATE proxy_usageday SET latency = replace(replace(latency, '":1', '":2'), '": 1', '": 2');
"""
FORGERIES: Final[dict[str, tuple[str, str]]] = {
    # what is done: the SQL, and a kind of finding that it causes
    "rewrite a row": (REWRITE, "row"),
    "rewrite the words of a row": ("UPDATE proxy_exchange SET prompt = 'x' WHERE id = $one;", "row"),
    "delete a transcript": (DELETE_TRANSCRIPT, "body"),
    "rewrite a row and append a link": (REWRITE + APPEND_LINK, "signature"),
    "rewrite, delete, append": (REWRITE + DELETE_TRANSCRIPT + APPEND_LINK, "signature"),
    "delete a row": (DELETE_TRANSCRIPT + DELETE_ROW, "lost"),
    "add a made-up row": (COPY_ROW, "unsealed"),
    "cut the end": ("DELETE FROM proxy_hashchainlink WHERE sequence > $last - 20;", "head"),
    "strip all signatures": ("UPDATE proxy_hashchainlink SET signature = NULL;", "signature"),
    "strip one signature": (
        "UPDATE proxy_hashchainlink SET signature = NULL WHERE sequence = $last;", "signature",
    ),
    "change an audit entry": (
        "UPDATE proxy_auditentry SET detail = 'x' WHERE id = $first_entry;", "audit",
    ),
    "delete an audit entry": ("DELETE FROM proxy_auditentry WHERE id = $first_entry;", "audit"),
    "delete the audit log": ("DELETE FROM proxy_auditentry;", "audit"),
    **{f"move all requests in {one}": (MOVE.replace("$table", f"proxy_{one}"), "sum") for one in ROLLUPS},
    "change a histogram": (HISTOGRAM, "sum"),
    "delete the sums": ("DELETE FROM proxy_usageday;", "sum"),
}  # fmt: skip


def post(gateway: Gateway, team: str) -> int:
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": f"I am {team}"}],
    }
    headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{team}"], "content-type": "application/json"}
    raw = json.dumps(body).encode()
    return gateway.request("POST", "/v1/messages", raw, headers, authorized=False).status


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that has served requests of two teams, and has published a head of its ledger."""
    folder = tmp_path_factory.mktemp("forged") / "gateway"
    with ScriptedUpstream() as upstream:
        upstream.on("m", json_response(upstream_scripts.COMPLETION))
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, TEAMS)
        with Gateway(folder, config, SECRETS) as running:
            with ThreadPoolExecutor(4) as pool:
                statuses = pool.map(post, [running] * REQUESTS, ["ALFA", "BETA"] * (REQUESTS // 2))
                assert Counter(statuses) == {200: REQUESTS}
            wait_until_drained(running)
            until(lambda: "ledger head:" in running.log, within_s=150)  # a minute after the start
            yield running


def verified(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    finished = gateway.run_command("verifyledger", "--json", *arguments)
    assert finished.stdout, finished.stderr
    result: dict[str, Any] = json.loads(finished.stdout)
    assert finished.returncode == bool(result["findings"]), finished.stderr
    return result


@contextlib.contextmanager
def changed(file: Path, sql: str) -> Iterator[int]:
    """Execute the SQL on the gateway's file, and put everything back at the end."""
    with (
        contextlib.closing(sqlite3.connect(file, timeout=30)) as ledger,
        contextlib.closing(sqlite3.connect(":memory:")) as saved,
    ):
        ledger.backup(saved)
        before = ledger.total_changes
        ledger.executescript(f"BEGIN; {Template(sql).substitute(PARTS)} COMMIT;")
        try:
            yield ledger.total_changes - before
        finally:
            saved.backup(ledger)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_an_administrator_of_the_database_changes_is_found(gateway: Gateway):
    file = gateway.folder / "data" / "ledger.sqlite3"
    assert verified(gateway)["findings"] == []
    missed = {}
    for name, (sql, what) in FORGERIES.items():
        with changed(file, sql) as changes:
            found = {one["what"] for one in verified(gateway)["findings"]}
        if what not in found or not changes:
            missed[name] = (changes, found)

    assert missed == {}
    assert verified(gateway)["findings"] == []
