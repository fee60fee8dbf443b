"""Every odd shape of an answer that was met or thought of; ``cases`` says what a folder holds."""

import pytest

from tests.fakes.grammar import faults_of_events
from translator import openai_chat, openai_responses

from .cases import Cases, expect, pretty
from .openai_responses.strict_types import assert_valid
from .requests import KEYS

CHAT = Cases("openai_chat", openai_chat.DIALECT, "generic", "qwen3")
RESPONSES = Cases("openai_responses", openai_responses.DIALECT, "openai", "gpt-5.2", KEYS)

every_case = pytest.mark.parametrize(
    ("cases", "case"),
    [
        pytest.param(cases, case, id=f"{cases.folder}-{case.name}")
        for cases in (CHAT, RESPONSES)
        for case in cases.all
    ],
)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite-cases", default=False))


@every_case
def test_the_request_becomes_this_body(cases, case, rewrite):
    body = cases.built(case).body

    expect(case / "upstream_request.json", pretty(body), rewrite=rewrite)
    if cases is RESPONSES:
        assert_valid(body)


@every_case
def test_the_answer_becomes_this_stream(cases, case, rewrite):
    told = cases.heard(case)

    expect(case / "expected.sse", told.frames, rewrite=rewrite)
    expect(case / "expected.json", pretty(told.summary), rewrite=rewrite)
    raw = any("bad_tool_json" in reason for *_, reason in told.notes)
    assert faults_of_events(told.events, raw_tool_input=raw) == []


@every_case
def test_cutting_the_bytes_changes_nothing(cases, case):
    assert cases.heard(case, step=1) == cases.heard(case)


@every_case
def test_each_case_says_why_it_is_here(cases, case):
    why = (case / "why.md").read_text().strip()

    assert why.endswith(".")
    assert "\n" not in why
