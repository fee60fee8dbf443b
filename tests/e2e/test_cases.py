"""Each case of ``tests/cases``, through the running gateway: a bare clone is proved as well.

A case is one odd shape of an upstream's answer. The gateway must send the very events that the case expects,
but for what only a real exchange has: its ids, its model name, signatures and estimates.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes import steps
from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.grammar import faults_of_bytes, read_frames
from tests.fakes.upstream import Asked, ScriptedUpstream

CASES = Path(__file__).parents[1] / "cases"
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
        told = self.folder / "target.json"
        profile = {"profile": DEFAULT_PROFILES[self.dialect]}
        return profile | (json.loads(told.read_bytes()) if told.exists() else {})

    def script(self, seed: int) -> steps.Script:
        whole = self.folder / "upstream.json"
        if whole.exists():
            return steps.json_answer(whole.read_bytes())
        return steps.stream((self.folder / "upstream.sse").read_bytes(), seed)


def playable(folder: Path) -> bool:
    answers = ("upstream.sse", "upstream.json")
    expected = ("request.json", "expected.sse", "expected.json")
    return any((folder / name).exists() for name in answers) and all(
        (folder / name).exists() for name in expected
    )


PLAYED = [
    Case(folder, dialect)
    for name, dialect in DIALECTS.items()
    for folder in sorted((CASES / name).glob("*"))
    if playable(folder)
]
BY_MODEL = {case.model: case for case in PLAYED}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A gateway with one upstream for each case, since a case may ask for a profile of its own."""
    with ScriptedUpstream() as player:
        player.choose(script_for)
        upstreams, routes = {}, ""
        for case in PLAYED:
            fields = {
                name: case.target[name]
                for name in ("profile", "capabilities")
                if name in case.target
            }
            upstreams[case.model] = {"dialect": case.dialect, "base_url": player.base_url} | fields
            routes += f'\n[[routes]]\nmodel = "{case.model}"\ntargets = [{{ upstream = "{case.model}" }}]\n'
        config = toml_for(upstreams, routes)
        with Gateway(tmp_path_factory.mktemp("cases"), config=config) as running:
            yield running


def script_for(asked: Asked) -> steps.Script | None:
    case = BY_MODEL.get(asked.model)
    return case.script(len(asked.body)) if case else None


def ask(gateway: Gateway, case: Case, *, stream: bool):
    body = json.loads((case.folder / "request.json").read_bytes())
    raw = json.dumps(body | {"model": case.model, "stream": stream}).encode()
    return gateway.ask("POST", "/v1/messages", raw, {"content-type": "application/json"})


def comparable(value: Any, *, usage: bool) -> Any:
    """The value without what differs from one exchange to the next."""
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


def usage_is_told(expected: dict[str, Any]) -> bool:
    return not any(note[0] == "usage" for note in expected.get("notes", []))


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: f"{case.dialect}-{case.folder.name}")
def test_a_case_streams_as_it_expects(gateway, case):
    expected = json.loads((case.folder / "expected.json").read_bytes())
    frames, _ = read_frames((case.folder / "expected.sse").read_bytes())
    wanted = [frame.body for frame in frames if frame.name != "ping"]

    reply = ask(gateway, case, stream=True)

    if reply.status != 200:
        assert json.loads(reply.body)["error"]["type"] == expected["error"]["type"]
        return
    assert faults_of_bytes(reply.body, raw_tool_input=True) == []
    heard = [frame.body for frame in read_frames(reply.body)[0] if frame.name != "ping"]
    # The first usage is an estimate of the input, which the case does not know.
    heard[0]["message"]["usage"] = wanted[0].get("message", {}).get("usage")
    told = usage_is_told(expected)
    assert comparable(heard, usage=told) == comparable(wanted, usage=told)


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: f"{case.dialect}-{case.folder.name}")
def test_a_case_answers_whole_as_it_expects(gateway, case):
    expected = json.loads((case.folder / "expected.json").read_bytes())

    reply = ask(gateway, case, stream=False)

    body = json.loads(reply.body)
    if "error" in expected:
        assert reply.status >= 400
        assert body["error"]["type"] == expected["error"]["type"]
        return
    assert reply.status == 200, body
    told = usage_is_told(expected)
    assert comparable(body, usage=told) == comparable(expected["message"], usage=told)


def test_there_are_cases_for_both_dialects():
    assert {case.dialect for case in PLAYED} == {"chat", "responses"}
