"""Upstream errors that quote credentials and the conversation, in every dialect.

The gateway runs as a separate process. No client, log, row or stored part may contain a credential.
No log, and no data of a team with ``store = "metadata"``, may contain text of a conversation.
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

from proxy.ledger.search.query import MAX_TERM
from proxy.ledger.transcripts import part_codec
from tests.fakes.servers.gateway import KEY, Gateway, Reply, toml_for
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Close,
    Script,
    WaitForGate,
    chunk,
    json_response,
    response,
    stream,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat
from tests.proxy.gateway import upstream_scripts
from tests.slow.threats import raw_http

DIALECTS = ("responses", "chat", "anthropic")
CREDENTIAL = f"credential+of/upstreams={secrets.token_hex(12)}"
"""The credential of all upstreams; no pattern matches its format."""
ENCODED = {
    "plain": CREDENTIAL,
    "URL-encoded": quote(CREDENTIAL, safe=""),
    "basic": base64.b64encode(f"user:{CREDENTIAL}".encode()).decode(),
}
SECRETS = {
    "credential": CREDENTIAL,
    "URL-encoded credential": quote(CREDENTIAL, safe=""),
    "basic credential": base64.b64encode(f"user:{CREDENTIAL}".encode()).decode()[12:40],
    "another key": f"sk-proj-{secrets.token_hex(12)}",
    "bearer": secrets.token_hex(16),
    "gateway key": KEY,
}
QUIET_KEY = "sk-br-" + "0a1b" * 12
CONTENT = {"e2e": f"loud-{secrets.token_hex(8)}", "quiet": f"quiet-{secrets.token_hex(8)}"}
TEXT = (
    f"refused {CREDENTIAL} as {ENCODED['URL-encoded']} or Basic {ENCODED['basic']}, "
    f"{SECRETS['another key']}, authorization: Bearer {SECRETS['bearer']}, {KEY}; "
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
targets = [{ upstream = "anthropic", model = "anthropic-falls" }, { upstream = "chat", model = "chat-ok" }]
[[teams]]
name = "quiet"
store = "metadata"
[[keys]]
team = "quiet"
name = "quiet"
secret = { env = "BRIDGE_KEY_QUIET" }
"""
STREAM_START = {
    "responses": b"".join(upstream_scripts.responses_events()[:4]),
    "chat": upstream_scripts.chat_chunk({"content": "Hello"}),
    "anthropic": b"".join(upstream_scripts.claude_events()[:3]),
}
"""A stream up to its first text delta."""
FIRST_TEXT_RECEIVED = threading.Event()
"""Set when the client has the first text, so that the error arrives in a separate read."""


def error_of(dialect: str, text: str, kind: str = "invalid_request_error") -> dict:
    error = {"type": kind, "message": text, "code": "unknown", "extra": [text]}
    body = {"error": error, "detail": text}
    return {"type": "error", **body} if dialect == "anthropic" else body


def event_of(dialect: str, text: str, kind: str = "invalid_request_error") -> bytes:
    body = error_of(dialect, text, kind)
    if dialect == "responses":
        body = {"type": "error", **body["error"]} | {"type": "error", "sequence_number": 9}
    return upstream_scripts.sse(body, "" if dialect == "chat" else "error")


def error_scripts(dialect: str, text: str) -> Iterator[tuple[str, Script]]:
    """Yield each place where an error can occur, with a name for its model."""
    body, event, before = error_of(dialect, text), event_of(dialect, text), STREAM_START[dialect]
    extra_headers = {
        "x-request-id": CREDENTIAL,
        "anthropic-extra": CREDENTIAL,
        "request-id": CREDENTIAL,
    }
    for status in (400, 401, 404, 413, 429, 500, 529):
        yield str(status), json_response(body, status, extra_headers)
    yield "whole", json_response(body, 200, extra_headers)
    yield "page", response(502, text.encode(), "text/plain", extra_headers)
    yield "list", json_response([body], 200)
    yield "first", upstream_scripts.pieces([event], LAST_CHUNK)
    yield (
        "middle",
        [
            *upstream_scripts.pieces([before]),
            WaitForGate(FIRST_TEXT_RECEIVED),
            chunk(event),
            LAST_CHUNK,
        ],
    )
    yield "together", upstream_scripts.pieces([before + event], LAST_CHUNK)
    yield "split", stream(before + event, 7, pauses=1_000)
    yield (
        "broken",
        upstream_scripts.pieces([before, b"data: " + text.encode() + b"\n\n"], LAST_CHUNK),
    )
    yield "cut", upstream_scripts.pieces([before, event[:-40]], Close())


class Exercised(NamedTuple):
    gateway: Gateway
    replies: dict[str, Reply]


def question(model: str, words: str, **fields: object) -> bytes:
    return raw_http.messages_body(
        model=model, messages=[{"role": "user", "content": words}], **fields
    )


@pytest.fixture(scope="module")
def exercised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exercised]:
    """A running gateway that has received all these errors, with the replies to its clients."""
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
            yield Exercised(gateway, dict(send_requests(gateway, upstream)))


def send_requests(gateway: Gateway, upstream: ScriptedUpstream) -> Iterator[tuple[str, Reply]]:
    upstream.on("chat-ok", upstream_scripts.chat("Well."))
    for team, key in (("e2e", KEY), ("quiet", QUIET_KEY)):
        words = CONTENT[team]
        headers = {"content-type": "application/json", "x-api-key": key}
        headers["x-bridge-events"] = "metadata"
        for dialect in DIALECTS:
            for place, script in error_scripts(dialect, TEXT + words):
                model = f"{dialect}-{place}"
                upstream.on(model, script)
                for streamed in (True, False):
                    body = question(model, words, stream=streamed)
                    name = f"{team} {model} {'stream' if streamed else 'whole'}"
                    yield (
                        name,
                        send(gateway, body, headers, wait_for_text=streamed and place == "middle"),
                    )
        for place in ("500", "first", "cut", "page"):
            event = event_of("anthropic", TEXT + words, "overloaded_error")
            first = upstream_scripts.pieces([event], LAST_CHUNK)
            failing = dict(error_scripts("anthropic", TEXT + words)) | {"first": first}
            upstream.on("anthropic-falls", failing[place])
            body = question("fall-x", words)
            yield f"{team} fallback {place}", gateway.request("POST", "/v1/messages", body, headers)
        count_response = json_response(
            {"input_tokens": 7, "extra": CREDENTIAL}, 200, {"anthropic-extra": CREDENTIAL}
        )
        upstream.on("/v1/messages/count_tokens", count_response)
        body = json.dumps({k: v for k, v in json.loads(question("anthropic-n", words)).items()
                           if k in ("model", "messages")}).encode()  # fmt: skip
        yield (
            f"{team} count",
            gateway.request("POST", "/v1/messages/count_tokens", body, headers),
        )
    for path in ("/v1/models", "/readyz", "/metrics"):
        yield path, gateway.request("GET", path)


def send(gateway: Gateway, body: bytes, headers: dict[str, str], *, wait_for_text: bool) -> Reply:
    """Send a request; with ``wait_for_text`` the upstream's error follows the client's first text."""
    if not wait_for_text:
        FIRST_TEXT_RECEIVED.set()
        return gateway.request("POST", "/v1/messages", body, headers)
    FIRST_TEXT_RECEIVED.clear()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=90)) as c:
        c.request("POST", "/v1/messages", body=body, headers=headers)
        reply = c.getresponse()
        first = b""
        while b"Hello" not in first:
            piece = reply.read1()
            assert piece, first
            first += piece
        FIRST_TEXT_RECEIVED.set()
        reply_headers = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, reply_headers, first + reply.read())


def secrets_in(text: str) -> set[str]:
    return {name for name, secret in SECRETS.items() if secret in text}


def secrets_by_reply(replies: dict[str, Reply]) -> dict[str, set[str]]:
    secrets_by_name = {
        name: secrets_in(repr(reply.headers) + reply.body.decode())
        for name, reply in replies.items()
    }
    return {name: found for name, found in secrets_by_name.items() if found}


def test_no_client_gets_a_credential(exercised: Exercised):
    assert len(exercised.replies) > 190
    assert secrets_by_reply(exercised.replies) == {}
    for place in ("500", "first", "cut", "page"):
        assert exercised.replies[f"e2e fallback {place}"].status == 200
    assert exercised.replies["e2e count"].status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("place", ["400", "middle", "first", "together", "split"])
def test_client_gets_the_redacted_error_text(exercised: Exercised, dialect: str, place: str):
    for team, words in CONTENT.items():
        output = exercised.replies[f"{team} {dialect}-{place} stream"].body.decode()
        assert words in output
        assert "refused" in output


def test_metadata_event_has_the_error_without_a_credential(exercised: Exercised):
    output = exercised.replies["e2e anthropic-middle stream"].body.decode()

    assert "event: bridge.metadata" in output
    assert output.count(CONTENT["e2e"]) >= 2  # in the metadata and in the error event
    assert secrets_in(output) == set()


def test_log_has_no_credential_and_no_conversation_text(exercised: Exercised):
    log = exercised.gateway.log

    assert secrets_in(log) == set()
    assert [line for line in log.splitlines() if any(w in line for w in CONTENT.values())] == []
    assert "Traceback" not in log
    failed = [line for line in log.splitlines() if "upstream_error 500 status_500" in line]
    assert failed
    assert all("_error by " in line or "_error (unknown) by " in line for line in failed)
    assert any("(unknown)" in line for line in log.splitlines())  # the upstream's own code


def test_row_has_the_redacted_error_and_no_text_of_a_metadata_only_team(
    exercised: Exercised,
):
    ids = [
        exercised.replies[f"{team} anthropic-middle stream"].headers["request-id"]
        for team in ("e2e", "quiet")
    ]
    rows = exercised.gateway.closed_rows(*ids)
    loud, quiet = (rows[each] for each in ids)

    assert secrets_in(json.dumps(list(rows.values()))) == set()
    assert CONTENT["e2e"] in json.dumps(loud)
    assert CONTENT["quiet"] not in json.dumps(list(rows.values()))
    assert (quiet["outcome"], loud["outcome"]) == ("upstream_error", "upstream_error")


@pytest.mark.repeated
@pytest.mark.parametrize(
    "command",
    # In the fast lane, ``test_canaries`` runs the others.
    [("doctor",), *repeat(fast=[], slow=[("exportledger", "--open"), ("dumpdata",)])],
)
def test_no_command_prints_a_credential(exercised: Exercised, command: tuple[str, ...]):
    try:
        output = exercised.gateway.manage(*command)
    except AssertionError as findings:  # doctor's exit code is 1
        output = str(findings)

    assert secrets_in(output) == set()
    assert CONTENT["quiet"] not in output


def test_stored_data_has_no_credential_and_no_text_of_a_metadata_only_team(
    exercised: Exercised,
):
    """Runs last: the gateway stops, which writes its memory to disk."""
    exercised.gateway.rows()
    exercised.gateway.stop()
    folder = Path(exercised.gateway.folder, "data")
    contents = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    contents |= dict(database_values(folder / "ledger.sqlite3"))

    texts = {name: raw.decode("latin-1") for name, raw in contents.items()}

    assert {name: secrets_in(text) for name, text in texts.items() if secrets_in(text)} == {}
    assert [name for name, text in texts.items() if CONTENT["quiet"] in text] == []
    loud, quiet = (CONTENT[team].partition("-")[2][:MAX_TERM] for team in ("e2e", "quiet"))
    assert [name for name, text in texts.items() if quiet in text] == []
    assert any(loud in text.split() for name, text in texts.items() if name.endswith(" terms"))
    # The search works: it finds the other team's error in the decompressed parts.
    assert any("refused" in text and CONTENT["e2e"] in text for text in texts.values())


def database_values(database: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each value of the database, decompressed if necessary."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tables = connection.execute(
            "SELECT name, sql LIKE 'CREATE VIRTUAL%' FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for table, is_index in tables:
            if is_index:  # a search index: it has terms and no rows
                connection.execute(
                    f"CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, '{table}', row)"
                )
                terms = connection.execute("SELECT term FROM temp.vocabulary").fetchall()
                connection.execute("DROP TABLE temp.vocabulary")
                yield f"{table} terms", "\n".join(term for (term,) in terms).encode()
                continue
            rows = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - a table name from sqlite_master
            for at, row in enumerate(rows):
                for column, value in enumerate(row):
                    raw = value if isinstance(value, bytes) else str(value).encode()
                    with contextlib.suppress(zstandard.ZstdError):
                        raw = part_codec.decompress(raw)
                    yield f"{table} {at} {column}", raw
