"""The calls of the upstream that searches may cause, for budgets; and the check by ``doctor``."""

import pytest

from proxy.bootstrap.upstream_checks import check_web_search
from proxy.gateway.web_search import RESULT_TOKENS, further_calls, worst_case_input
from tests.fakes.upstreams.script_steps import Script, html_response, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream

TOOL = {"type": "web_search_20250305", "name": "web_search"}
PAGE = {"url": "https://a.example", "title": "A", "content": "text"}


@pytest.fixture
def endpoint(settings):
    with ScriptedUpstream() as scripted:
        settings.WEB_SEARCH_URL = f"{scripted.url}/search"
        yield scripted


def test_without_an_endpoint_nothing_is_checked_and_no_call_follows():
    assert list(check_web_search()) == []
    assert further_calls({"tools": [TOOL]}) == 0
    assert worst_case_input({"tools": [TOOL]}, 100, 50) == 100


def test_each_further_call_repeats_the_response_and_the_results(endpoint: ScriptedUpstream):
    request = {"tools": [{**TOOL, "max_uses": 1}]}

    assert further_calls(request) == 2
    assert worst_case_input(request, 100, 50) == 3 * 100 + 2 * 50 + 3 * RESULT_TOKENS
    assert further_calls({"tools": [TOOL]}) == 10
    assert further_calls({"tools": []}) == 0


@pytest.mark.parametrize(
    ("script", "ok", "text"),
    [
        (json_response({"results": [PAGE]}), True, "127.0.0.1 returned 1 results"),
        (json_response({"results": []}), False, "127.0.0.1 returned 0 results"),
        (json_response({}, 403), False, "127.0.0.1 returned no results: unavailable"),
        (json_response({}, 429), False, "127.0.0.1 returned no results: too_many_requests"),
        (html_response(200), False, "127.0.0.1 returned no results: unavailable"),
        (json_response({"results": ["x" * 2**20]}), False, "returned no results: unavailable"),
    ],
)
def test_doctor_makes_one_search(endpoint: ScriptedUpstream, script: Script, ok: bool, text: str):
    endpoint.on("/search", script)

    (finding,) = check_web_search()

    assert (finding.ok, text in finding.text) == (ok, True), finding
    assert "q=Anthropic+Messages+API" in endpoint.requests[0].path
