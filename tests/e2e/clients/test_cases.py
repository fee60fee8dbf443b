"""Each case of ``tests/cases`` through a running gateway.

A case is one unusual form of an upstream's response. The gateway must send exactly the expected
events, except ids, model names, signatures and estimates, which differ for each request. The fast lane
sends every fifth case without streaming too.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.grammar import faults_of_bytes, read_frames
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.for_each import for_each
from tests.lanes import repeat

CASES = Path(__file__).parents[2] / "cases"
DIALECTS = {"openai_chat": "chat", "openai_responses": "responses"}
DEFAULT_PROFILES = {"chat": "generic", "responses": "openai"}


class Case(NamedTuple):
    folder: Path
    dialect: str

    @property
    def model(self) -> str:
        return f"case-{self.dialect}-{self.folder.name}"

    @property
    def target(self) -> dict[str, Any]:
        path = self.folder / "target.json"
        profile = {"profile": DEFAULT_PROFILES[self.dialect]}
        return profile | (json.loads(path.read_bytes()) if path.exists() else {})

    def script(self, seed: int) -> script_steps.Script:
        whole = self.folder / "upstream.json"
        if whole.exists():
            return script_steps.json_response(whole.read_bytes())
        return script_steps.stream((self.folder / "upstream.sse").read_bytes(), seed)


def is_complete(folder: Path) -> bool:
    answers = ("upstream.sse", "upstream.json")
    expected = ("request.json", "expected.sse", "expected.json")
    return any((folder / name).exists() for name in answers) and all(
        (folder / name).exists() for name in expected
    )


CASES_WITH_STREAM = [
    Case(folder, dialect)
    for name, dialect in DIALECTS.items()
    for folder in sorted((CASES / name).glob("*"))
    if is_complete(folder)
]
BY_MODEL = {case.model: case for case in CASES_WITH_STREAM}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A gateway with one upstream for each case, because a case may have its own profile."""
    with ScriptedUpstream() as upstream:
        upstream.choose(script_for)
        upstreams, routes = {}, ""
        for case in CASES_WITH_STREAM:
            fields = {
                name: case.target[name]
                for name in ("profile", "capabilities")
                if name in case.target
            }
            upstreams[case.model] = {
                "dialect": case.dialect,
                "base_url": upstream.base_url,
            } | fields
            routes += f'\n[[routes]]\nmodel = "{case.model}"\ntargets = [{{ upstream = "{case.model}" }}]\n'
        config = toml_for(upstreams, routes)
        with Gateway(tmp_path_factory.mktemp("cases"), config=config) as running:
            yield running


def script_for(request: ReceivedRequest) -> script_steps.Script | None:
    case = BY_MODEL.get(request.model)
    return case.script(len(request.body)) if case else None


def send_request(gateway: Gateway, case: Case, *, stream: bool):
    body = json.loads((case.folder / "request.json").read_bytes())
    raw = json.dumps(body | {"model": case.model, "stream": stream}).encode()
    return gateway.request("POST", "/v1/messages", raw, {"content-type": "application/json"})


def comparable(value: Any, *, usage: bool) -> Any:
    """Return the value without the fields that differ for each request."""
    if isinstance(value, list):
        return [comparable(each, usage=usage) for each in value]
    if not isinstance(value, dict):
        return value
    dropped = {"signature", "request_id"} | (set() if usage else {"usage"})
    if value.get("type") in {"message", "tool_use", "server_tool_use"}:
        dropped.add("id")
    if value.get("type") == "message":
        dropped |= {"model"}
    return {k: comparable(v, usage=usage) for k, v in value.items() if k not in dropped}


def usage_is_reported(expected: dict[str, Any]) -> bool:
    return not any(note[0] == "usage" for note in expected.get("notes", []))


@for_each("case", CASES_WITH_STREAM, ids=lambda case: f"{case.dialect}-{case.folder.name}")
def test_streamed_case_has_the_expected_events(gateway, case):
    expected = json.loads((case.folder / "expected.json").read_bytes())
    frames, _ = read_frames((case.folder / "expected.sse").read_bytes())
    expected_events = [frame.body for frame in frames if frame.name != "ping"]

    reply = send_request(gateway, case, stream=True)

    if reply.status != 200:
        assert json.loads(reply.body)["error"]["type"] == expected["error"]["type"]
        return
    assert faults_of_bytes(reply.body, raw_tool_input=True) == []
    events = [frame.body for frame in read_frames(reply.body)[0] if frame.name != "ping"]
    # The first usage is an estimate that the case does not contain.
    events[0]["message"]["usage"] = expected_events[0].get("message", {}).get("usage")
    has_usage = usage_is_reported(expected)
    assert comparable(events, usage=has_usage) == comparable(expected_events, usage=has_usage)


@pytest.mark.repeated
@for_each(
    "case",
    CASES_WITH_STREAM[:: repeat(fast=5, slow=1)],
    ids=lambda case: f"{case.dialect}-{case.folder.name}",
)
def test_case_without_streaming_has_the_expected_message(gateway, case):
    expected = json.loads((case.folder / "expected.json").read_bytes())

    reply = send_request(gateway, case, stream=False)

    body = json.loads(reply.body)
    if "error" in expected:
        assert reply.status >= 400
        assert body["error"]["type"] == expected["error"]["type"]
        return
    assert reply.status == 200, body
    has_usage = usage_is_reported(expected)
    for block in expected["message"]["content"]:
        if block.get("citations", ()) is None:
            block["citations"] = []  # as sent without streaming
    assert comparable(body, usage=has_usage) == comparable(expected["message"], usage=has_usage)


def test_both_dialects_have_cases():
    assert {case.dialect for case in CASES_WITH_STREAM} == {"chat", "responses"}
