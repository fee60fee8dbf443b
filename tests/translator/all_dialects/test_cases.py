"""Run every case of an unusual response; ``cases`` documents the files of a case."""

import pytest

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from tests.translator.openai_responses.request.strict_types import assert_valid

from .answers import CHAT, RESPONSES
from .cases import expect, pretty

every_case = for_each(
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
    body = cases.build_request(case).body

    expect(case / "upstream_request.json", pretty(body), rewrite=rewrite)
    if cases is RESPONSES:
        assert_valid(body)


@every_case
def test_each_case_gives_its_expected_stream_and_message(cases, case, rewrite):
    reply = cases.run(case)

    expect(case / "expected.sse", reply.frames, rewrite=rewrite)
    expect(case / "expected.json", pretty(reply.summary), rewrite=rewrite)
    raw = any("bad_tool_json" in reason for *_, reason in reply.notes)
    assert faults_of_events(reply.events, raw_tool_input=raw) == []


@every_case
def test_cutting_the_bytes_changes_nothing(cases, case):
    assert cases.run(case, step=1) == cases.run(case)


@every_case
def test_each_case_has_a_reason(cases, case):
    why = (case / "why.md").read_text().strip()

    assert why.endswith(".")
    assert "\n" not in why
