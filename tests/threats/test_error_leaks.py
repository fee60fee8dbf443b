"""Upstreams that quote credentials and the conversation in their errors, in every dialect.

The gateway runs as an operator runs it. No client, log, row or stored part may hold a credential;
no log, and nothing that a team with ``store = "metadata"`` leaves behind, a word of a conversation.
"""

import base64
import contextlib
import http.client
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
import zstandard

from proxy.record import frames
from tests.fakes.gateway import KEY, Gateway, Reply, toml_for
from tests.fakes.steps import LAST_CHUNK, Close, Hold, Script, answer, chunk, json_answer, stream
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

from . import wire

DIALECTS = ("responses", "chat", "anthropic")
CREDENTIAL = f"credential+of/upstreams={secrets.token_hex(12)}"
"""Of all upstreams; no pattern knows its shape."""
SPELLED = {
    "plain": CREDENTIAL,
    "URL-encoded": quote(CREDENTIAL, safe=""),
    "basic": base64.b64encode(f"user:{CREDENTIAL}".encode()).decode(),
}
HIDDEN = {
    "credential": CREDENTIAL,
    "URL-encoded credential": quote(CREDENTIAL, safe=""),
    "basic credential": base64.b64encode(f"user:{CREDENTIAL}".encode()).decode()[12:40],
    "another key": f"sk-proj-{secrets.token_hex(12)}",
    "bearer": secrets.token_hex(16),
    "gateway key": KEY,
}
QUIET_KEY = "sk-br-" + "0a1b" * 12
WORDS = {"e2e": f"loud-{secrets.token_hex(8)}", "quiet": f"quiet-{secrets.token_hex(8)}"}
TEXT = (
    f"refused {CREDENTIAL} as {SPELLED['URL-encoded']} or Basic {SPELLED['basic']}, "
    f"{HIDDEN['another key']}, authorization: Bearer {HIDDEN['bearer']}, {KEY}; "
)
ROUTES = """
[[routes]]
model = "responses-*"
targets = [{ upstream = "responses" }]
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]
[[routes]]
model = "anthropic-*"
targets = [{ upstream = "anthropic" }]
[[routes]]
model = "fall-*"
targets = [{ upstream = "anthropic", model = "anthropic-falls" }, { upstream = "chat", model = "chat-well" }]
[[teams]]
name = "quiet"
store = "metadata"
[[keys]]
team = "quiet"
name = "quiet"
secret = { env = "BRIDGE_KEY_QUIET" }
"""
BEFORE = {
    "responses": b"".join(scripts.responses_events()[:4]),
    "chat": scripts.chat_chunk({"content": "Hello"}),
    "anthropic": b"".join(scripts.claude_events()[:3]),
}
"""A stream up to its first delta of text."""
MIDDLE = threading.Event()
"""Set once the client has the first text: the error follows in a read of its own."""


def error_of(dialect: str, text: str, kind: str = "invalid_request_error") -> dict:
    error = {"type": kind, "message": text, "code": "odd", "extra": [text]}
    body = {"error": error, "detail": text}
    return {"type": "error", **body} if dialect == "anthropic" else body


def event_of(dialect: str, text: str, kind: str = "invalid_request_error") -> bytes:
    body = error_of(dialect, text, kind)
    if dialect == "responses":
        body = {"type": "error", **body["error"]} | {"type": "error", "sequence_number": 9}
    return scripts.sse(body, "" if dialect == "chat" else "error")


def plays(dialect: str, text: str) -> Iterator[tuple[str, Script]]:
    """Each place in which an error can stand, by a name that a model can have."""
    body, event, before = error_of(dialect, text), event_of(dialect, text), BEFORE[dialect]
    told = {"x-request-id": CREDENTIAL, "anthropic-told": CREDENTIAL, "request-id": CREDENTIAL}
    for status in (400, 401, 404, 413, 429, 500, 529):
        yield str(status), json_answer(body, status, told)
    yield "whole", json_answer(body, 200, told)
    yield "page", answer(502, text.encode(), "text/plain", told)
    yield "list", json_answer([body], 200)
    yield "first", scripts.pieces([event], LAST_CHUNK)
    yield "middle", [*scripts.pieces([before]), Hold(MIDDLE), chunk(event), LAST_CHUNK]
    yield "together", scripts.pieces([before + event], LAST_CHUNK)
    yield "split", stream(before + event, 7, pauses=1_000)
    yield "broken", scripts.pieces([before, b"data: " + text.encode() + b"\n\n"], LAST_CHUNK)
    yield "cut", scripts.pieces([before, event[:-40]], Close())


class Lived(NamedTuple):
    gateway: Gateway
    replies: dict[str, Reply]


def question(model: str, words: str, **fields: object) -> bytes:
    return wire.question(model=model, messages=[{"role": "user", "content": words}], **fields)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """A gateway that has met all of them, still running, and what its clients got."""
    with ScriptedUpstream() as upstream:
        config = toml_for(
            {
                name: {
                    "dialect": name,
                    "base_url": upstream.url if name == "anthropic" else upstream.base_url,
                }
                for name in DIALECTS
            },
            ROUTES,
        )
        environment = {"E2E_UPSTREAM_KEY": CREDENTIAL, "BRIDGE_KEY_QUIET": QUIET_KEY}
        folder = tmp_path_factory.mktemp("leaks")
        with Gateway(folder, config=config, environment=environment) as gateway:
            yield Lived(gateway, dict(live(gateway, upstream)))


def live(gateway: Gateway, upstream: ScriptedUpstream) -> Iterator[tuple[str, Reply]]:
    upstream.on("chat-well", scripts.chat("Well."))
    for team, key in (("e2e", KEY), ("quiet", QUIET_KEY)):
        words = WORDS[team]
        headers = {"content-type": "application/json", "x-api-key": key}
        headers["x-bridge-events"] = "metadata"
        for dialect in DIALECTS:
            for place, script in plays(dialect, TEXT + words):
                model = f"{dialect}-{place}"
                upstream.on(model, script)
                for way in (True, False):
                    body = question(model, words, stream=way)
                    name = f"{team} {model} {'stream' if way else 'whole'}"
                    yield name, asked(gateway, body, headers, hold=way and place == "middle")
        for place in ("500", "first", "cut", "page"):
            event = event_of("anthropic", TEXT + words, "overloaded_error")
            first = scripts.pieces([event], LAST_CHUNK)
            failing = dict(plays("anthropic", TEXT + words)) | {"first": first}
            upstream.on("anthropic-falls", failing[place])
            body = question("fall-x", words)
            yield f"{team} fallback {place}", gateway.ask("POST", "/v1/messages", body, headers)
        counted = json_answer(
            {"input_tokens": 7, "told": CREDENTIAL}, 200, {"anthropic-told": CREDENTIAL}
        )
        upstream.on("/v1/messages/count_tokens", counted)
        body = json.dumps({k: v for k, v in json.loads(question("anthropic-n", words)).items()
                           if k in ("model", "messages")}).encode()  # fmt: skip
        yield (
            f"{team} count",
            gateway.ask("POST", "/v1/messages/count_tokens", body, headers),
        )
    for path in ("/v1/models", "/readyz", "/metrics"):
        yield path, gateway.ask("GET", path)


def asked(gateway: Gateway, body: bytes, headers: dict[str, str], *, hold: bool) -> Reply:
    """Ask; ``hold``: the upstream's error comes when the client has read the first text."""
    if not hold:
        MIDDLE.set()
        return gateway.ask("POST", "/v1/messages", body, headers)
    MIDDLE.clear()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=90)) as c:
        c.request("POST", "/v1/messages", body=body, headers=headers)
        reply = c.getresponse()
        first = b""
        while b"Hello" not in first:
            piece = reply.read1()
            assert piece, first
            first += piece
        MIDDLE.set()
        named = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, named, first + reply.read())


def found_in(text: str) -> set[str]:
    return {name for name, secret in HIDDEN.items() if secret in text}


def places_in(replies: dict[str, Reply]) -> dict[str, set[str]]:
    told = {
        name: found_in(repr(reply.headers) + reply.body.decode()) for name, reply in replies.items()
    }
    return {name: found for name, found in told.items() if found}


def test_no_client_gets_a_credential(lived: Lived):
    assert len(lived.replies) > 190
    assert places_in(lived.replies) == {}
    for place in ("500", "first", "cut", "page"):
        assert lived.replies[f"e2e fallback {place}"].status == 200
    assert lived.replies["e2e count"].status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("place", ["400", "middle", "first", "together", "split"])
def test_a_client_still_gets_the_rest_of_the_error(lived: Lived, dialect: str, place: str):
    for team, words in WORDS.items():
        told = lived.replies[f"{team} {dialect}-{place} stream"].body.decode()
        assert words in told
        assert "refused" in told


def test_the_metadata_of_a_stream_holds_no_credential_and_tells_the_error(lived: Lived):
    told = lived.replies["e2e anthropic-middle stream"].body.decode()

    assert "event: bridge.metadata" in told
    assert told.count(WORDS["e2e"]) >= 2  # in it, and in the error itself
    assert found_in(told) == set()


def test_the_log_holds_no_credential_and_no_word_of_a_conversation(lived: Lived):
    log = lived.gateway.log

    assert found_in(log) == set()
    assert [line for line in log.splitlines() if any(w in line for w in WORDS.values())] == []
    assert "Traceback" not in log
    failed = [line for line in log.splitlines() if "upstream_error 500 status_500" in line]
    assert failed
    assert all("_error by " in line or "_error (odd) by " in line for line in failed)
    assert any("(odd)" in line for line in log.splitlines())  # the upstream's own code


def test_a_row_holds_the_error_without_a_credential_and_without_words_where_none_are_kept(
    lived: Lived,
):
    ids = [
        lived.replies[f"{team} anthropic-middle stream"].headers["request-id"]
        for team in ("e2e", "quiet")
    ]
    rows = lived.gateway.closed_rows(*ids)
    loud, quiet = (rows[each] for each in ids)

    assert found_in(json.dumps(list(rows.values()))) == set()
    assert WORDS["e2e"] in json.dumps(loud)
    assert WORDS["quiet"] not in json.dumps(list(rows.values()))
    assert (quiet["outcome"], loud["outcome"]) == ("upstream_error", "upstream_error")


@pytest.mark.parametrize("command", [("doctor",), ("exportledger", "--open"), ("dumpdata",)])
def test_no_command_prints_a_credential(lived: Lived, command: tuple[str, ...]):
    try:
        told = lived.gateway.manage(*command)
    except AssertionError as findings:  # doctor's exit code is 1
        told = str(findings)

    assert found_in(told) == set()
    assert WORDS["quiet"] not in told


def test_nothing_that_is_stored_holds_a_credential_or_a_word_of_who_keeps_none(lived: Lived):
    """Last of all: the gateway stops, so that what was in memory is on the disk."""
    lived.gateway.rows()
    lived.gateway.stop()
    folder = Path(lived.gateway.folder, "data")
    held = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    held |= dict(stored(folder / "ledger.sqlite3"))

    told = {name: raw.decode("latin-1") for name, raw in held.items()}

    assert {name: found_in(text) for name, text in told.items() if found_in(text)} == {}
    assert [name for name, text in told.items() if WORDS["quiet"] in text] == []
    # The search finds what is there: the error of the other team, in its unpacked parts.
    assert any("refused" in text and WORDS["e2e"] in text for text in told.values())


def stored(database: Path) -> Iterator[tuple[str, bytes]]:
    """Each value of the database, the compressed ones unpacked."""
    with contextlib.closing(sqlite3.connect(database)) as link:
        tables = link.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            rows = link.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - a table of ours
            for at, row in enumerate(rows):
                for column, value in enumerate(row):
                    raw = value if isinstance(value, bytes) else str(value).encode()
                    with contextlib.suppress(zstandard.ZstdError):
                        raw = frames.plain(raw)
                    yield f"{table} {at} {column}", raw
