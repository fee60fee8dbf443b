"""Requests with planted words, a search for the words in files, and the pages that show them."""

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.servers.gateway import Gateway, Reply, toml_for
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.fakes.servers.web_session import WebSession
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.upstream import ScriptedUpstream

PROMPT, ANSWER, TOOL_INPUT = "quokkaprompt", "axolotlanswer", "narwhalinput"
REJECTED, FAILURE = "wombatrejected", "ibexfailure"
WORDS = (PROMPT, ANSWER, TOOL_INPUT, REJECTED, FAILURE)
FIRST_KEY, SECOND_KEY = "first-body-key-" * 4, "second-body-key-" * 4
SESSION = "session-with-words"
ROUTE = '[[routes]]\nmodel = "*"\ntargets = [{ upstream = "chat" }]\n'
TOOL_CALL = {
    "index": 0,
    "id": "call_1",
    "function": {"name": "find", "arguments": json.dumps({"what": TOOL_INPUT})},
}


def _chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()


STREAM = (
    _chunk({"content": f"The {ANSWER} is here."})
    + _chunk({"tool_calls": [TOOL_CALL]})
    + _chunk({}, "tool_calls")
    + b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    + b"data: [DONE]\n\n"
)


def gateway_with_words(folder: Path, upstream: ScriptedUpstream, **environment: str) -> Gateway:
    """Return a gateway that is not started yet, whose upstream sends the planted words."""
    upstream.on("fine", script_steps.stream(STREAM))
    failure = {"error": {"message": f"cannot read {FAILURE}", "type": "invalid_request_error"}}
    upstream.on("failing", script_steps.json_response(failure, 400))
    config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTE)
    return Gateway(folder, config=config, environment=environment)


def send(gateway: Gateway, text: str = f"Find the {PROMPT}.", **fields: Any) -> str:
    """Send one request; return its id."""
    return _post(gateway, text, fields).headers["request-id"]


def _post(gateway: Gateway, text: str, fields: Mapping[str, Any]) -> Reply:
    body = {
        "model": "fine",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": text}],
        "tools": [{"name": "find", "input_schema": {"type": "object"}}],
        "metadata": {"user_id": json.dumps({"session_id": SESSION})},
        **fields,
    }
    sent = {"content-type": "application/json"}
    return gateway.request("POST", "/v1/messages", json.dumps(body).encode(), sent)


def send_words(gateway: Gateway) -> tuple[str, str]:
    """Send the words in every kind of request; return the ids of a stream and a whole response."""
    streamed = send(gateway, stream=True)
    whole = _post(gateway, f"Repeat the {PROMPT}.", {})
    assert ANSWER in whole.body.decode(), whole.body
    assert _post(gateway, "Reject.", {"tools": [{"name": REJECTED * 30}]}).status == 400
    failing = _post(gateway, "Fail.", {"model": "failing"})
    assert failing.status == 400
    ids = (streamed, whole.headers["request-id"])
    for request_id in (*ids, failing.headers["request-id"]):
        wait_for_transcript(gateway, request_id)
    return ids


def words_in_files(folder: Path) -> set[str]:
    """Return the planted words in the bytes of all files, and the files that have them."""
    found = set()
    for path in folder.rglob("*"):
        raw = path.read_bytes() if path.is_file() else b""
        found |= {f"{word} in {path.name}" for word in WORDS if word.encode() in raw}
    return found


def words_of_pages(gateway: Gateway, *request_ids: str) -> str:
    """Return the admin's pages of these requests, the lists, the session and its exports."""
    web = WebSession(gateway).sign_in("admin", ADMIN_PASSWORD)
    pages = [f"/admin/proxy/exchange/{one}/change/" for one in request_ids]
    pages += ["/admin/proxy/exchange/", "/admin/sessions/"]
    pages += [f"/admin/sessions/one/?id={SESSION}&tab=words"]
    pages += [
        f"/admin/sessions/export/?id={SESSION}&format={form}" for form in ("jsonl", "markdown")
    ]
    text = ""
    for page in pages:
        reply = web.send("GET", page)
        assert reply.status == 200, (page, reply.status)
        text += reply.body.decode()
    return re.sub(r"\s+", " ", text)


def transcript(gateway: Gateway, request_id: str) -> Reply:
    return gateway.request("GET", f"/api/v1/requests/{request_id}/transcript/")


def wait_for_transcript(gateway: Gateway, request_id: str) -> str:
    """Wait until the request is in the database; return its transcript as JSON."""
    deadline = time.monotonic() + 90
    while (reply := transcript(gateway, request_id)).status != 200:
        assert time.monotonic() < deadline, reply.body
        time.sleep(0.05)
    return reply.body.decode()


def exported_figures(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the rows of ``exportledger`` without their texts."""
    texts = ("prompt", "preview", "error")
    return [{k: v for k, v in row.items() if k not in texts} for row in gateway.rows().values()]


def shown_figures(gateway: Gateway) -> list[Any]:
    """Return the requests and the summary of the API, without error messages and times of now."""
    summary, requests = (
        json.loads(gateway.request("GET", f"/api/v1/{path}/").body)
        for path in ("summary", "requests")
    )
    assert len(requests["data"]) > 3
    for row in requests["data"]:
        row["error"] = None
    of_now = dict.fromkeys(("from", "to", "data_refreshed_at"))
    assert of_now.keys() <= summary.keys()
    return [requests["data"], summary | of_now]
