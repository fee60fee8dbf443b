"""The test environment for faults: the gateway as a process, scripted upstreams and the ledger.

``assert_invariants`` checks the same invariants after every fault:

I1 every accepted request has one closed row, and no row stays open;
I2 the numbers of rows, client requests and upstream requests agree;
I3 the client received a complete response or a typed error, or (if it disconnected or sent invalid
   HTTP) nothing;
I4 a row is ``completed`` only if the upstream completed its response; other rows have no stop_reason;
I5 tokens that a row marks as reported are those that the upstream reported;
I6 the numbers of sockets, files and running requests are as before;
I7 a normal request succeeds right after;
I8 no line of the log contains a secret; each failure has exactly one line with its request id.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.servers.gateway import Gateway, Reply, toml_for
from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.fakes.upstreams.script_steps import Script, stream
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.slow.faults.fault_scripts import default_response

from .ledger import Ledger, PostgresLedger, Row, SqliteLedger
from .sockets import Sockets, open_files
from .unreachable_upstreams import NOWHERE, Places

LONG_TIMEOUTS = {"connect_s": 10, "first_byte_s": 20, "idle_s": 20, "total_s": 60}
SHORT_TIMEOUTS = {"connect_s": 2, "first_byte_s": 4, "idle_s": 4, "total_s": 20}
SHORT_TOTAL = {**LONG_TIMEOUTS, "total_s": 2.5}
PROFILES = {"chat": "generic", "responses": "openai", "anthropic": "anthropic"}
ENVIRONMENT = {
    "BRIDGE_PING_INTERVAL_S": "0.3",
    "BRIDGE_FIRST_EVENT_WAIT_S": "2.5",  # longer than a loaded machine delays an upstream
    "BRIDGE_HEAD_TIMEOUT_S": "5",  # longer than a loaded machine delays a client
    "BRIDGE_BODY_TIMEOUT_S": "5",
    "BRIDGE_WRITE_TIMEOUT_S": "5",  # longer than a loaded machine delays a slow reader
    "BRIDGE_DRAIN_S": "3",
}
UPSTREAM_SECRET = "sk-upstream-of-the-tests"
KEYS = {  # further keys: name -> (the fields in bridge.toml, the secret)
    "expired": ("expires = 2020-01-01", "sk-br-" + "old0" * 12),
    "narrow": ('models = ["claude-*"]', "sk-br-" + "slim" * 12),
    "reporter": ('scopes = ["reports"]', "sk-br-" + "rprt" * 12),
    "revoked": ("", "sk-br-" + "gone" * 12),
    "quiet": ("", "sk-br-" + "hush" * 12),  # of a team with store = "metadata"
}
TEAM = {"quiet": "quiet"}
QUIET_TEAM = '\n[[teams]]\nname = "quiet"\nstore = "metadata"\n'
FAILURES = {"upstream_error", "upstream_timeout", "gateway_error", "drained"}
PLACES = ("steady", "hasty", "brief", "mute")
HEALTHY = "steady-chat-healthy"
SETTLED_WITHIN_S = 60


def configuration(urls: Mapping[str, str]) -> str:
    """Build bridge.toml with an upstream ``<place>-<dialect>`` for each place and dialect."""
    upstreams = {}
    for place, url in urls.items():
        for dialect, profile in PROFILES.items():
            upstreams[f"{place}-{dialect}"] = {
                "dialect": dialect,
                "base_url": url if dialect == "anthropic" else f"{url}/v1",
                "profile": profile,
                "timeouts": TIMEOUTS.get(place, LONG_TIMEOUTS),
            }
    routes = "".join(
        f'\n[[routes]]\nmodel = "{name}-*"\ntargets = [{{ upstream = "{name}" }}]\n'
        for name in upstreams
    )
    keys = "".join(
        f'\n[[keys]]\nteam = "{TEAM.get(name, "e2e")}"\nname = "{name}"\n{fields}\n'
        f'secret = {{ env = "BRIDGE_KEY_{name.upper()}" }}\n'
        for name, (fields, _) in KEYS.items()
    )
    return toml_for(upstreams, routes) + QUIET_TEAM + keys


TIMEOUTS = {
    **dict.fromkeys(("hasty", "mute", "blackhole", "tls-hangs"), SHORT_TIMEOUTS),
    "brief": SHORT_TOTAL,
}


@dataclass
class World:
    """One gateway, its upstreams and its ledger; ``mark`` stores where the checks start."""

    gateway: Gateway
    ledger: Ledger
    upstreams: dict[str, ScriptedUpstream]  # by place
    _newest_id: str = ""
    _log_start: int = 0
    _requests_before: dict[str, int] = field(default_factory=dict)
    _files_before: int = 0

    @property
    def pid(self) -> int:
        return self.gateway.process.pid

    def secret_of(self, key: str) -> str:
        return KEYS[key][1] if key in KEYS else self.gateway.key

    def upstream_of(self, place: str) -> ScriptedUpstream:
        """Return the upstream of a place; a place without one uses the steady upstream."""
        return self.upstreams.get(place, self.upstreams["steady"])

    def warm_up(self) -> None:
        """Send first requests, so that files they open do not count as leaks of a fault."""
        self._revoke_key("revoked")
        self.mark()
        self._files_before = 10_000
        self.assert_invariants(accepted=0)
        self._files_before = self._open_files()

    def _revoke_key(self, name: str) -> None:
        """Revoke a key over REST, and wait until the gateway rejects it."""
        found = json.loads(self.gateway.request("GET", f"/api/v1/keys/?name={name}").body)
        (key,) = found["data"]
        assert self.gateway.request("DELETE", f"/api/v1/keys/{key['id']}/").status == 200
        revoked = {"x-api-key": KEYS[name][1]}
        self.until(
            lambda: self.gateway.request("GET", "/v1/models", None, revoked).status == 401,
            "a revoked key still works",
        )

    def mark(self) -> None:
        """Wait until earlier records are written, then start counting."""
        self.until(lambda: self.ready()["backlog"] == 0, "an earlier record is not written")
        self._newest_id = self.ledger.newest()
        self._log_start = len(self.gateway.log)
        self._requests_before = {name: len(one.requests) for name, one in self.upstreams.items()}

    def requests_since_mark(self) -> list[Any]:
        """Return the requests that the upstreams received since the mark."""
        return [
            each
            for name, one in self.upstreams.items()
            for each in list(one.requests)[self._requests_before[name] :]
        ]

    def rows(self) -> list[Row]:
        """Return the rows since the mark, by time."""
        ids = self.ledger.ids_since(self._newest_id)
        return [self.ledger.row(each) for each in ids]

    def until(self, condition: Callable[[], object], what: str) -> Any:
        """Poll until ``condition`` is true; ``what`` describes the failure."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}; /readyz: {self.ready()}"
            time.sleep(0.01)
        return found

    def ready(self) -> dict[str, Any]:
        payload: dict[str, Any] = json.loads(self.gateway.request("GET", "/readyz").body)
        return payload

    # Invariants after each fault.

    def assert_invariants(self, *, accepted: int) -> list[Row]:
        """Check I1, I2 and I6 to I8; ``assert_row_is_consistent`` checks I4 and I5 for each row.

        ``accepted`` is the number of requests since the mark that must have a row. Return these rows.
        """
        self._assert_released()
        healthy = self._send_healthy()
        self.until(
            lambda: len(self.ledger.ids_since(self._newest_id)) > accepted, "a row is missing (I1)"
        )
        self.until(lambda: not self.ledger.open_rows(), "a row stays open (I1)")
        rows = self.rows()
        _assert_healthy(healthy, rows)
        rows = [row for row in rows if row["model_requested"] != HEALTHY]
        assert len(rows) == accepted, f"I2: {len(rows)} rows for {accepted} requests: {rows}"
        self._assert_logged(rows)
        return rows

    def _send_healthy(self) -> Reply:
        request = {"model": HEALTHY, "max_tokens": 9, "stream": True}
        request["messages"] = [{"role": "user", "content": "Are you well?"}]
        return self.gateway.request("POST", "/v1/messages", json.dumps(request).encode())

    def _assert_released(self) -> None:
        """I6: no client connection is open, and upstream connections are only idle ones."""
        self.until(
            lambda: all(each.ending for each in self.requests_since_mark()),
            "an upstream request is not finished (I6)",
        )
        self.until(
            lambda: not Sockets.of(self.pid).at(self.gateway.port),
            "a client connection stays open (I6)",
        )
        self.until(lambda: self.ready()["running"] == 0, "a request is still running (I6)")
        for name, one in self.upstreams.items():
            self.until(
                lambda one=one: len(Sockets.of(self.pid).to(one.port)) == one.open_connections,
                f"a socket to {name} is left (I6)",
            )
        self.until(
            lambda: self._open_files() <= self._files_before,
            f"files are left open (I6): {self._files_before}",
        )

    def _open_files(self) -> int:
        """Return the number of file descriptors that are not sockets."""
        return sum(not name.startswith("socket:") for name in open_files(self.pid))

    def _assert_logged(self, rows: list[Row]) -> None:
        """Check I8."""

        def lines() -> list[str]:
            return self.gateway.log[self._log_start :].splitlines()

        def error_lines(row: Row) -> int:
            return sum(row["id"] in line for line in lines() if " INFO " not in line)

        for row in rows:
            expected = int(row["outcome"] in FAILURES)
            self.until(
                lambda row=row, n=expected: error_lines(row) >= n, f"{row['id']} is not logged (I8)"
            )
            assert error_lines(row) == expected, f"I8: {row['id']} {row['outcome']}: {lines()}"
        for secret in (self.gateway.key, UPSTREAM_SECRET, *(KEYS[name][1] for name in KEYS)):
            assert secret not in self.gateway.log, "I8: a secret is in the log"

    def reset_peak(self) -> int:
        """Reset the peak memory; return the resident memory in KiB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")
        return self._memory("VmRSS")

    def peak_kib(self) -> int:
        """Return the peak memory since the reset, in KiB."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(status.partition(f"{name}:")[2].split()[0])


def _assert_healthy(reply: Reply, rows: list[Row]) -> None:
    """Check I7."""
    assert reply.status == 200, reply.body
    assert faults_of_bytes(reply.body) == []
    assert b"event: message_stop" in reply.body
    (row,) = (row for row in rows if row["id"] == reply.headers["request-id"])
    assert (row["outcome"], row["input_tokens"], row["output_tokens"]) == ("completed", 12, 5), row


def assert_row_is_consistent(row: Row, *, completes: bool, tokens: tuple[int, int]) -> None:
    """Check I4 and I5."""
    if row["outcome"] == "completed":
        assert completes, f"I4: completed, but the upstream did not complete its response: {row}"
    else:
        assert row["stop_reason"] == "", f"I4: {row['stop_reason']} for {row['outcome']}"
    if row["input_source"] == row["output_source"] == "reported":
        found = (row["input_tokens"], row["output_tokens"])
        assert found == tokens, f"I5: {found} instead of {tokens}"


def usage_of(row: Row) -> str:
    """Return the source of both token counts, or ``partial`` if the sources differ."""
    sources = {row["input_source"], row["output_source"]}
    return str(sources.pop()) if len(sources) == 1 else "partial"


@contextmanager
def running_world(
    folder: Path, database_url: str = "", places: Places = NOWHERE, **more: str
) -> Iterator[World]:
    """Start an environment with its own gateway; ``more`` is added to the process environment."""
    with contextlib.ExitStack() as stack:
        upstreams = {name: stack.enter_context(ScriptedUpstream()) for name in PLACES}
        upstreams["steady"].on(HEALTHY, healthy_script())
        config = configuration({**{n: one.url for n, one in upstreams.items()}, **places.urls})
        upstreams |= places.scripted
        secrets = {f"BRIDGE_KEY_{name.upper()}": secret for name, (_, secret) in KEYS.items()}
        environment = {**ENVIRONMENT, **secrets, **places.environment, **more}
        if database_url:
            environment["DATABASE_URL"] = database_url
        with Gateway(folder, config=config, environment=environment) as gateway:
            ledger = folder / "data" / "ledger.sqlite3"
            database = PostgresLedger(database_url) if database_url else SqliteLedger(ledger)
            world = World(gateway, Ledger(database), upstreams)
            world.warm_up()
            yield world


def healthy_script() -> Script:
    return stream(b"".join(b"".join(part) for part in default_response("chat")))
