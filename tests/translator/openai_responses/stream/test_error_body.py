"""Failures of a Responses upstream in Anthropic's terms."""

import json
import typing

import pytest
from openai.types.responses import ResponseError

from tests.fakes.upstreams import recordings
from tests.for_each import for_each
from translator.openai_responses.responses_stream import (
    error_in_event,
    error_in_response,
    map_error,
)

ERRORS = [
    path
    for path in recordings.recordings("errors")
    if "responses" in path.name or "xai" in path.name or "gpt-5" in path.name
]

BY_CODE = {
    "server_error": "api_error",
    "vector_store_timeout": "api_error",
    "rate_limit_exceeded": "rate_limit_error",
    "data_residency_mismatch": "permission_error",
}
POLICIES = {"bio_policy", "misalignment_policy_violation", "image_content_policy_violation"}
CODES = typing.get_args(ResponseError.model_fields["code"].annotation)


@for_each("code", CODES)
def test_every_code_of_a_failed_response_has_a_meaning(code):
    body = {"status": "failed", "error": {"code": code, "message": "It broke."}}

    error = error_in_response(body)

    assert error is not None
    assert error.message in ("It broke.", "Could not process image: It broke.")
    assert error.is_refusal == (code in POLICIES)
    if code not in POLICIES:
        assert error.error_type == BY_CODE.get(code, "invalid_request_error")


def test_a_response_without_error_is_not_an_error():
    assert error_in_response({"status": "completed", "error": None, "output": []}) is None


@for_each(
    "event",
    [
        {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."},
        {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "Slow down."}},
        {
            "type": "response.failed",
            "response": {"error": {"code": "rate_limit_exceeded", "message": "Slow down."}},
        },
    ],
    ids=["flat", "nested", "failed"],
)
def test_an_error_is_read_from_each_position(event):
    error = error_in_event(event)

    assert (error.status, error.error_type, error.message) == (
        429,
        "rate_limit_error",
        "Slow down.",
    )


def test_a_failure_without_details_is_still_a_failure():
    error = error_in_event({"type": "response.cancelled", "response": {"status": "cancelled"}})

    assert (error.status, error.error_type) == (502, "api_error")
    assert error.message == "upstream response cancelled"
    assert error_in_event({"type": "error"}).message == "upstream response failed"


@pytest.mark.skipif(not ERRORS, reason=recordings.ABSENT)
@for_each("path", ERRORS, ids=lambda path: path.stem[:60])
def test_a_recorded_error_reaches_the_client_with_its_class(path):
    recorded = json.loads(path.read_bytes())
    status = recorded["status"] or 400

    error = map_error(status, recorded["body_json"])

    assert 400 <= error.status <= 599
    assert error.status != 401  # a rejected upstream key is not a client error
    assert error.message
    assert "key" not in error.message or "sk-" not in error.message


def test_a_prompt_that_is_too_long_has_anthropics_message():
    body = {"error": {"code": "context_length_exceeded", "message": "Your input exceeds it."}}

    error = map_error(400, body)

    assert error.message.startswith("prompt is too long")
    assert error.should_retry is False
