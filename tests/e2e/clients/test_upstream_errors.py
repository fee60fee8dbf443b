"""Recorded upstream errors become Anthropic's errors, and the SDK raises the matching exception."""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.e2e import sdks
from tests.fakes.upstreams import recordings, script_steps
from tests.for_each import for_each
from tests.lanes import repeat

ERRORS = recordings.recordings("errors")
pytestmark = pytest.mark.skipif(not ERRORS, reason=recordings.ABSENT)

CONTEXT_LENGTH = ("maximum context", "context window", "prompt too long", "messages is too long")
EXPECTED = {
    400: (400, "invalid_request_error", "BadRequestError"),
    401: (
        500,
        "api_error",
        "InternalServerError",
    ),  # the gateway's key is invalid, not the client's
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
    body = recorded(path)["body_raw"]
    if "exceeded your current quota" in body:
        return EXPECTED[402]
    if "Incorrect API key" in body:  # xAI sends 400
        return EXPECTED[401]
    status = recorded(path)["status"] or 400
    if recorded(path)["provider"] == "anthropic" and status == 401:
        return EXPECTED[401]
    return EXPECTED[status]


@pytest.fixture(scope="session")
def sdk_errors(gateway, shared_upstream):
    """A function that returns the exception of each SDK for every recorded error, by mode."""
    for path in ERRORS:
        shared_upstream.on(model_of(path), script_steps.recorded_error(path))

    @cache
    def run(version: sdks.Line) -> dict:
        body = {"max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
        jobs = [
            {"id": f"{mode}-{path.stem}", "mode": mode, "body": body | {"model": model_of(path)}}
            for path in ERRORS
            for mode in ("raw", "whole")
        ]
        return sdks.run_jobs(version, base_url=gateway.url, key=gateway.key, jobs=jobs)

    return run


VERSIONS: list[sdks.Line] = repeat(fast=["newest"], slow=["newest", "last-0.x"])
"""The SDKs of the running lane; test_sdk has errors for both."""


@pytest.mark.repeated
@for_each("version", VERSIONS)
@for_each("mode", ["raw", "whole"])
@for_each("path", ERRORS, ids=lambda path: path.stem)
def test_recorded_error_raises_the_matching_exception(sdk_errors, path, mode, version):
    status, kind, exception = expected_of(path)

    result = sdk_errors(version)[f"{mode}-{path.stem}"]

    assert (result["status"], result["error"]["error"]["type"]) == (status, kind), result
    assert result["request_id"].startswith("req_")
    assert exception is None or result["raised"] == exception


TOO_LONG = [path for path in ERRORS if any(words in path.read_text() for words in CONTEXT_LENGTH)]


@for_each("path", TOO_LONG, ids=lambda path: path.stem)
def test_too_long_prompt_gets_anthropics_message(sdk_errors, path):
    result = sdk_errors("newest")[f"whole-{path.stem}"]

    # Claude Code compacts the conversation when it receives this phrase.
    assert result["error"]["error"]["message"].startswith("prompt is too long")
