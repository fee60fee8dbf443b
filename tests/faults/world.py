"""A whole world for faults: the real gateway as a process, lying upstreams, the ledger's books.

``assert_world`` says whether all is well after a fault; it is the same for every fault:

I1 every accepted request has one final row, and no row stays open;
I2 rows, the client's requests and the upstream's tally agree in number;
I3 the client got a whole answer, or a typed error, or (where it left or lied) nothing;
I4 no row says ``completed`` unless the upstream ended its answer; else it has no stop_reason;
I5 tokens that a row calls reported are those that the upstream told;
I6 sockets, files and running requests are back where they were;
I7 a healthy request succeeds right after;
I8 no line of the log holds a secret; each failure has one line there that names its request.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.gateway import Gateway, Reply, toml_for
from tests.fakes.grammar import faults_of_bytes
from tests.fakes.steps import Script, stream
from tests.fakes.upstream import ScriptedUpstream

from .ledger import Ledger, PostgresBooks, Row, SqliteBooks
from .places import NOWHERE, Places
from .plays import voice
from .sockets import Sockets, open_files

PATIENT = {"connect_s": 10, "first_byte_s": 20, "idle_s": 20, "total_s": 60}
HASTY = {"connect_s": 2, "first_byte_s": 4, "idle_s": 4, "total_s": 20}
BRIEF = {**PATIENT, "total_s": 2.5}
PROFILES = {"chat": "generic", "responses": "openai", "anthropic": "anthropic"}
ENVIRONMENT = {
    "BRIDGE_PING_INTERVAL_S": "0.3",
    "BRIDGE_HOLD_S": "2.5",  # longer than a busy machine keeps an upstream from speaking
    "BRIDGE_HEAD_TIMEOUT_S": "5",  # longer than a busy machine keeps a client from speaking
    "BRIDGE_BODY_TIMEOUT_S": "5",
    "BRIDGE_WRITE_TIMEOUT_S": "5",  # longer than a busy machine keeps a slow reader from reading
    "BRIDGE_DRAIN_S": "3",
}
UPSTREAM_SECRET = "sk-upstream-of-the-tests"
KEYS = {  # further keys: name -> (the fields in bridge.toml, the secret)
    "expired": ("expires = 2020-01-01", "sk-br-" + "old0" * 12),
    "narrow": ('models = ["claude-*"]', "sk-br-" + "slim" * 12),
    "reporter": ('scopes = ["reports"]', "sk-br-" + "rprt" * 12),
    "revoked": ("", "sk-br-" + "gone" * 12),
    "quiet": ("", "sk-br-" + "hush" * 12),  # of a team whose words are not kept
}
TEAM = {"quiet": "quiet"}
QUIET = '\n[[teams]]\nname = "quiet"\nstore = "metadata"\n'
REVOKE = """
from datetime import datetime, UTC
from proxy.models import ApiKey
key = ApiKey.objects.get(name="revoked")
key.revoked = datetime.now(UTC)
key.save()
"""
FAILURES = {"upstream_error", "upstream_timeout", "gateway_error", "drained"}
PLACES = ("steady", "hasty", "brief", "mute")
HEALTHY = "steady-chat-healthy"
SETTLED_WITHIN_S = 60


def configuration(urls: Mapping[str, str]) -> str:
    """bridge.toml: for each place an upstream speaks in every dialect, ``<place>-<dialect>``."""
    upstreams = {}
    for place, url in urls.items():
        for dialect, profile in PROFILES.items():
            upstreams[f"{place}-{dialect}"] = {
                "dialect": dialect,
                "base_url": url if dialect == "anthropic" else f"{url}/v1",
                "profile": profile,
                "timeouts": TIMEOUTS.get(place, PATIENT),
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
    return toml_for(upstreams, routes) + QUIET + keys


TIMEOUTS = {**dict.fromkeys(("hasty", "mute", "blackhole", "tls-hangs"), HASTY), "brief": BRIEF}


@dataclass
class World:
    """One gateway, its upstreams and its ledger. ``newest`` and the like are marks to count from."""

    gateway: Gateway
    ledger: Ledger
    upstreams: dict[str, ScriptedUpstream]  # by place
    _newest: str = ""
    _logged: int = 0
    _asked: dict[str, int] = field(default_factory=dict)
    _files: int = 0

    @property
    def pid(self) -> int:
        return self.gateway.process.pid

    def secret_of(self, key: str) -> str:
        return KEYS[key][1] if key in KEYS else self.gateway.key

    def upstream_of(self, place: str) -> ScriptedUpstream:
        """Who answers at a place; places that nobody answers at share the steady one's tally."""
        return self.upstreams.get(place, self.upstreams["steady"])

    def warm_up(self) -> None:
        """What opens at a first request is no leak of a later one."""
        self.mark()
        self._files = 10_000
        assert self.gateway.ask("GET", "/api/v1/me/").status == 200
        self.assert_world(accepted=0)
        self._files = self._open_files()
        self.gateway.manage("shell", "--verbosity", "0", "-c", REVOKE)
        revoked = {"x-api-key": KEYS["revoked"][1]}
        self.until(
            lambda: self.gateway.ask("GET", "/v1/models", None, revoked).status == 401,
            "a revoked key still works",
        )

    def mark(self) -> None:
        """From here on everything is counted, and nothing from before is still to come."""
        self.until(lambda: self.ready()["backlog"] == 0, "an earlier record waits")
        self._newest = self.ledger.newest()
        self._logged = len(self.gateway.log)
        self._asked = {name: len(one.asked) for name, one in self.upstreams.items()}

    def asked(self) -> list[Any]:
        """What the upstreams were asked since the mark."""
        return [
            each
            for name, one in self.upstreams.items()
            for each in list(one.asked)[self._asked[name] :]
        ]

    def rows(self) -> list[Row]:
        """The rows since the mark, by time."""
        ids = self.ledger.ids_since(self._newest)
        return [self.ledger.row(each) for each in ids]

    def until(self, holds: Callable[[], object], what: str) -> Any:
        """Poll until it holds; ``what`` is said when it never does."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while not (found := holds()):
            assert time.monotonic() < deadline, f"{what}; /readyz says {self.ready()}"
            time.sleep(0.01)
        return found

    def ready(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.gateway.ask("GET", "/readyz").body)
        return told

    # What holds after each fault.

    def assert_world(self, *, accepted: int) -> list[Row]:
        """I1, I2 and I6 to I8; I4 and I5 are judged row by row: ``assert_honest``.

        ``accepted``: requests since the mark that must have a row. Returns those rows.
        """
        self._assert_released()
        healthy = self._ask_healthy()
        self.until(
            lambda: len(self.ledger.ids_since(self._newest)) > accepted, "a row is missing (I1)"
        )
        self.until(lambda: not self.ledger.open_rows(), "a row stays open (I1)")
        rows = self.rows()
        _assert_healthy(healthy, rows)
        rows = [row for row in rows if row["model_requested"] != HEALTHY]
        assert len(rows) == accepted, f"I2: {len(rows)} rows for {accepted} requests: {rows}"
        self._assert_logged(rows)
        return rows

    def _ask_healthy(self) -> Reply:
        request = {"model": HEALTHY, "max_tokens": 9, "stream": True}
        request["messages"] = [{"role": "user", "content": "Are you well?"}]
        return self.gateway.ask("POST", "/v1/messages", json.dumps(request).encode())

    def _assert_released(self) -> None:
        """I6: no client's connection is left, and none to an upstream but those that idle."""
        self.until(lambda: all(each.ending for each in self.asked()), "an upstream is held (I6)")
        self.until(lambda: not Sockets.of(self.pid).at(self.gateway.port), "a client is held (I6)")
        self.until(lambda: self.ready()["running"] == 0, "a request is still running (I6)")
        for name, one in self.upstreams.items():
            self.until(
                lambda one=one: len(Sockets.of(self.pid).to(one.port)) == one.connected,
                f"a socket to {name} is left (I6)",
            )
        self.until(
            lambda: self._open_files() <= self._files, f"files are left open (I6): {self._files}"
        )

    def _open_files(self) -> int:
        """File descriptors that are no sockets."""
        return sum(not name.startswith("socket:") for name in open_files(self.pid))

    def _assert_logged(self, rows: list[Row]) -> None:
        """I8."""

        def lines() -> list[str]:
            return self.gateway.log[self._logged :].splitlines()

        def told(row: Row) -> int:
            return sum(row["id"] in line for line in lines() if " INFO " not in line)

        for row in rows:
            wanted = int(row["outcome"] in FAILURES)
            self.until(lambda row=row, n=wanted: told(row) >= n, f"{row['id']} is not logged (I8)")
            assert told(row) == wanted, f"I8: {row['id']} {row['outcome']}: {lines()}"
        for secret in (self.gateway.key, UPSTREAM_SECRET, *(KEYS[name][1] for name in KEYS)):
            assert secret not in self.gateway.log, "I8: a secret is in the log"

    def peak_reset(self) -> int:
        """Begin to measure anew; the resident memory now, in KiB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most memory since then, in KiB."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(status.partition(f"{name}:")[2].split()[0])


def _assert_healthy(reply: Reply, rows: list[Row]) -> None:
    """I7."""
    assert reply.status == 200, reply.body
    assert faults_of_bytes(reply.body) == []
    assert b"event: message_stop" in reply.body
    (row,) = (row for row in rows if row["id"] == reply.headers["request-id"])
    assert (row["outcome"], row["input_tokens"], row["output_tokens"]) == ("completed", 12, 5), row


def assert_honest(row: Row, *, well: bool, tokens: tuple[int, int]) -> None:
    """I4 and I5."""
    if row["outcome"] == "completed":
        assert well, f"I4: completed, and the upstream never ended its answer: {row}"
    else:
        assert row["stop_reason"] == "", f"I4: {row['stop_reason']} for {row['outcome']}"
    if row["input_source"] == row["output_source"] == "reported":
        told = (row["input_tokens"], row["output_tokens"])
        assert told == tokens, f"I5: {told} where the upstream told {tokens}"


def usage_of(row: Row) -> str:
    """``reported``, ``estimated``, ``missing``, or ``partial`` when the counts differ in that."""
    sources = {row["input_source"], row["output_source"]}
    return str(sources.pop()) if len(sources) == 1 else "partial"


@contextmanager
def running_world(
    folder: Path, database_url: str = "", places: Places = NOWHERE, **more: str
) -> Iterator[World]:
    """A world with a gateway of its own; ``more`` is for its environment."""
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
            books = PostgresBooks(database_url) if database_url else SqliteBooks(ledger)
            world = World(gateway, Ledger(books), upstreams)
            world.warm_up()
            yield world


def healthy_script() -> Script:
    return stream(b"".join(b"".join(part) for part in voice("chat")))
