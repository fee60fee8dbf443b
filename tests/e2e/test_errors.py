"""Recorded upstream errors reach the client as Anthropic's errors, and the SDK raises the right one."""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.fakes import recordings, steps

from . import sdks

ERRORS = recordings.recordings("errors")
pytestmark = pytest.mark.skipif(not ERRORS, reason=recordings.ABSENT)

CONTEXT_LENGTH = ("maximum context", "context window", "prompt too long", "messages is too long")
EXPECTED = {
    400: (400, "invalid_request_error", "BadRequestError"),
    401: (500, "api_error", "InternalServerError"),  # our key is bad, not the client's
    402: (402, "billing_error", None),
    404: (404, "not_found_error", "NotFoundError"),
    429: (429, "rate_limit_error", "RateLimitError"),
}


@cache
def recorded(path: Path) -> dict:
    return json.loads(path.read_bytes())


def model_of(path: Path) -> str:
    provider, endpoint = recorded(path)["provider"], recorded(path)["endpoint"] or ""
    if provider == "anthropic":
        return f"anthropic-{path.stem}"
    return f"{'responses' if 'responses' in endpoint else 'chat'}-{path.stem}"


def expected_of(path: Path) -> tuple[int, str, str | None]:
    said = recorded(path)["body_raw"]
    if "exceeded your current quota" in said:
        return EXPECTED[402]
    if "Incorrect API key" in said:  # xAI says 400 to it
        return EXPECTED[401]
    status = recorded(path)["status"] or 400
    if recorded(path)["provider"] == "anthropic" and status == 401:
        return EXPECTED[401]
    return EXPECTED[status]


@pytest.fixture(scope="session")
def raised(gateway, player):
    """What each SDK raised for every recorded error, streaming and not."""
    for path in ERRORS:
        player.on(model_of(path), steps.recorded_error(path))

    @cache
    def run(line: sdks.Line) -> dict:
        body = {"max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
        jobs = [
            {"id": f"{mode}-{path.stem}", "mode": mode, "body": body | {"model": model_of(path)}}
            for path in ERRORS
            for mode in ("raw", "whole")
        ]
        return sdks.drive(line, base_url=gateway.url, key=gateway.key, jobs=jobs)

    return run


@pytest.mark.parametrize("line", ["newest", "last-0.x"])
@pytest.mark.parametrize("mode", ["raw", "whole"])
@pytest.mark.parametrize("path", ERRORS, ids=lambda path: path.stem)
def test_a_recorded_error_raises_the_right_exception(raised, path, mode, line):
    status, kind, exception = expected_of(path)

    came = raised(line)[f"{mode}-{path.stem}"]

    assert (came["status"], came["error"]["error"]["type"]) == (status, kind), came
    assert came["request_id"].startswith("req_")
    assert exception is None or came["raised"] == exception


TOO_LONG = [path for path in ERRORS if any(words in path.read_text() for words in CONTEXT_LENGTH)]


@pytest.mark.parametrize("path", TOO_LONG, ids=lambda path: path.stem)
def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(raised, path):
    came = raised("newest")[f"whole-{path.stem}"]

    # Claude Code compacts the conversation when it reads this phrase.
    assert came["error"]["error"]["message"].startswith("prompt is too long")
