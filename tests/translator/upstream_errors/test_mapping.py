"""Map an upstream failure to status, type, message and retry decision."""

import json

import pytest

from tests.fakes.upstreams import recordings
from tests.for_each import for_each
from translator.anthropic.error_body import STATUS_BY_TYPE
from translator.upstream_errors import ErrorFields, map_error, status_of_error

RECORDED = recordings.recordings("errors")


def error(message="It broke.", **fields):
    return {"error": {"message": message, **fields}}


@for_each(
    ("status", "body", "expected"),
    [
        (400, error(), (400, "invalid_request_error")),
        (400, error(code="Arrearage"), (402, "billing_error")),
        (403, error(type="exceeded_current_quota_error"), (402, "billing_error")),
        (429, error(code="1113"), (402, "billing_error")),
        (429, error(type="engine_overloaded_error"), (529, "overloaded_error")),
        (200, {"base_resp": {"status_code": 1008, "status_msg": "no"}}, (402, "billing_error")),
        (401, error(), (500, "api_error")),
        (402, error(), (402, "billing_error")),
        (403, error(), (403, "permission_error")),
        (404, error("Not Found"), (500, "api_error")),
        (404, error(code="model_not_found"), (404, "not_found_error")),
        (404, error(code="DeploymentNotFound"), (404, "not_found_error")),
        (404, error("The model 'x' does not exist"), (404, "not_found_error")),
        (408, error(), (408, "timeout_error")),
        (409, error(), (409, "conflict_error")),
        (413, error(), (413, "request_too_large")),
        (422, {"detail": "unusual"}, (400, "invalid_request_error")),
        (429, error(code="rate_limit_exceeded"), (429, "rate_limit_error")),
        (429, error(code="insufficient_quota"), (402, "billing_error")),
        (429, error(code="billing_not_active"), (402, "billing_error")),
        (413, error(type="tokens", code="rate_limit_exceeded"), (413, "request_too_large")),
        (400, error("API key not valid. Please pass a valid one."), (500, "api_error")),
        (400, error("Incorrect API key provided: x"), (500, "api_error")),
        (500, error(), (500, "api_error")),
        (500, error("The server is overloaded"), (529, "overloaded_error")),
        (502, None, (502, "api_error")),
        (503, error(), (529, "overloaded_error")),
        (500, error(type="server_error"), (500, "api_error")),
        (502, error(type="server_error"), (500, "api_error")),
        (503, error(type="server_error"), (529, "overloaded_error")),
        (504, error(type="server_error"), (504, "timeout_error")),
        (500, error("It is overloaded", type="server_error"), (529, "overloaded_error")),
        (400, error(code="server_error"), (500, "api_error")),
        (504, "<html></html>", (504, "timeout_error")),
        (520, "<html></html>", (502, "api_error")),
        (524, None, (504, "timeout_error")),
        (529, error(), (529, "overloaded_error")),
    ],
)
def test_each_failure_has_a_status_and_a_type(status, body, expected):
    mapped = map_error(status, body)

    assert (mapped.status, mapped.error_type) == expected


def test_the_retry_time_and_the_parameter_are_passed_on():
    reply = error("Please retry after 14 seconds", param="input", code="rate_limit_exceeded")
    mapped = map_error(429, reply)

    assert (mapped.retry_after_s, mapped.param) == (14, "input")
    assert map_error(404, error(code="model_not_found", param="x")).param == "model"
    assert map_error(429, error(param="")).param is None


def test_a_rejected_upstream_key_is_never_a_client_error():
    mapped = map_error(401, error("Incorrect API key provided: sk-live-123456"))

    assert mapped.message == "upstream authentication failed"
    assert mapped.should_retry is False


@for_each(
    ("body", "message"),
    [
        ("<html>Bad gateway</html>", "upstream returned HTTP 502 (text/html)"),
        ("gateway down", "upstream returned HTTP 502 (text/plain)"),
        (None, "upstream returned HTTP 502"),
        (error("", code="unusual"), "upstream returned HTTP 502"),
    ],
)
def test_unsuitable_error_messages_are_replaced(body, message):
    assert map_error(502, body).message == message


def test_no_key_and_no_address_reaches_the_client():
    message = map_error(400, error("see https://internal.example/x with sk-abcdefgh123456")).message

    assert "internal.example" not in message
    assert "sk-abc" not in message


@for_each(
    ("body", "message"),
    [
        (
            error(
                "This model's maximum context length is 8192 tokens. However, you requested 9000"
                " tokens (9000 in the messages)."
            ),
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
        (
            error(
                "Your input exceeds the context window of this model.",
                code="context_length_exceeded",
            ),
            "prompt is too long: Your input exceeds the context window of this model.",
        ),
        (
            error("prompt is too long: 5 tokens", code="context_length_exceeded"),
            "prompt is too long: 5 tokens",
        ),
        (error("Too much.", type="too_many_prompt_tokens"), "prompt is too long: Too much."),
        (
            # vLLM: the first number is the answer's, and smaller than the window
            error(
                "This model's maximum context length is 262144 tokens. However, you requested"
                " 128000 output tokens and your prompt contains at least 134145 input tokens,"
                " for a total of at least 262145 tokens."
            ),
            "prompt is too long: 262145 tokens > 262144 maximum",
        ),
        (
            error(
                "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768"
                " maximum context length"
            ),
            "prompt is too long: 65673 tokens > 32768 maximum",
        ),
        (
            error(
                "The input token count (1200000) exceeds the maximum number of tokens allowed"
                " (1048576)."
            ),
            "prompt is too long: 1200000 tokens > 1048576 maximum",
        ),
        (
            error(
                "This model's maximum prompt length is 131072 but the request contains 150000"
                " tokens."
            ),
            "prompt is too long: 150000 tokens > 131072 maximum",
        ),
        (
            error(
                "request (5000 tokens) exceeds the available context size (4096 tokens), try"
                " increasing it"
            ),
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            error("ContextWindowExceededError: prompt is too long: 210000 tokens > 200000 maximum"),
            "prompt is too long: 210000 tokens > 200000 maximum",
        ),
        (
            error("Your request exceeded model token limit: 131072"),
            "prompt is too long: Your request exceeded model token limit: 131072",
        ),
        (error("Prompt exceeds max length"), "prompt is too long: Prompt exceeds max length"),
        (
            error(
                "prompt token count of 140000 exceeds the limit of 128000",
                code="model_max_prompt_tokens_exceeded",
            ),
            "prompt is too long: 140000 tokens > 128000 maximum",
        ),
        (
            {"error": "`inputs` must have less than 4096 tokens. Given: 5000"},
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            error("Input is too long for requested model."),
            "prompt is too long: Input is too long for requested model.",
        ),
        (
            error("maximum context length " + "9" * 5000),
            "prompt is too long: maximum context length " + "9" * 456 + "…",
        ),
    ],
)
def test_a_prompt_that_is_too_long_has_anthropics_message(body, message):
    mapped = map_error(400, body)

    assert (mapped.status, mapped.message, mapped.should_retry) == (400, message, False)


@for_each(
    ("body", "category", "explanation"),
    [
        (error("Flagged.", code="bio_policy"), "bio", "Flagged."),
        (error("Flagged.", code="data_inspection_failed"), None, "Flagged."),
        (error("Flagged.", code="1301"), None, "Flagged."),
        ({"base_resp": {"status_code": 1027, "status_msg": "Flagged."}}, None, "Flagged."),
        (error("Flagged.", code="cyber_policy"), "cyber", "Flagged."),
        (error("Flagged.", code="x", type="content_policy_violation"), None, "Flagged."),
        (
            error("", code="content_filter"),
            None,
            "the upstream's content filter refused the prompt",
        ),
        (
            error(
                "Long text.",
                code="content_filter",
                innererror={"content_filter_result": {"hate": {"filtered": True}}},
            ),
            None,
            "the upstream's content filter refused the prompt: hate",
        ),
    ],
)
def test_a_policy_is_a_refusal_and_not_worth_a_retry(body, category, explanation):
    mapped = map_error(400, body)

    assert mapped.is_refusal
    assert mapped.should_retry is False
    assert (mapped.refusal_category, mapped.message) == (category, explanation)


def test_the_invalid_parameter_is_preserved():
    assert map_error(400, error(param="reasoning.summary")).param == "reasoning.summary"
    assert map_error(404, error(code="model_not_found")).param == "model"
    assert map_error(400, error()).param is None


@for_each(
    ("status", "body", "is_too_long"),
    [
        (422, {"error": "`inputs` must have less than 4096 tokens. Given: 5000"}, True),
        (413, error("Request body too large. Max size: 8000.", code="tokens_limit_reached"), True),
        (422, error("must be less than 2"), False),
        # Clients parse these numbers and request less output.
        (400, error("input length and `max_tokens` exceed context limit: 1 + 3 > 3"), False),
    ],
)
def test_a_prompt_that_is_too_long_is_recognized_without_its_status(status, body, is_too_long):
    mapped = map_error(status, body)

    assert mapped.message.startswith("prompt is too long") == is_too_long


@for_each(
    ("fields", "status"),
    [
        (ErrorFields(status=418), 418),
        (ErrorFields(type="rate_limit_error"), 429),
        (ErrorFields(type="hologram_error"), 502),
        (ErrorFields(), 502),
    ],
)
def test_an_error_inside_a_200_has_the_status_it_would_have_had(fields, status):
    assert status_of_error(fields) == status


@pytest.mark.skipif(not RECORDED, reason=recordings.ABSENT)
@for_each("path", RECORDED, ids=lambda path: path.stem[:70])
def test_every_recorded_error_has_a_class(path):
    recorded = json.loads(path.read_bytes())
    body = recorded["body_json"] if recorded["body_json"] is not None else recorded["body_raw"]

    mapped = map_error(recorded["status"] or 400, body)

    assert mapped.error_type in STATUS_BY_TYPE
    assert mapped.status >= 400
    assert mapped.message
    assert "http" not in mapped.message.lower().replace("http ", "")


# Errors keep their words


@for_each(
    ("status", "text"),
    [
        (500, "image input is not supported - hint: if this is unexpected, you may need the mmproj"),
        (404, "Only 'text' content type is supported."),
        (400, "/models/qwen3 is not a multimodal model"),
        (400, "At most 0 image(s) may be provided in one prompt."),
        (500, "this model is missing data required for image input"),
        (404, "No endpoints found that support image input"),
        (400, "Failed to deserialize: unknown variant `image_url`, expected `text`"),
        (400, "Invalid content type. image_url is only supported by certain models."),
        (500, ("While executing CallExpression: Error: Jinja Exception: Conversation roles must"
              " alternate user/assistant/user/assistant/...")),
        (400, "Conversation roles must alternate user/assistant"),
        (500, "the chat template of the model failed"),
    ],
)  # fmt: skip
def test_a_request_that_the_model_can_never_answer_is_not_worth_a_retry(status, text):
    mapped = map_error(status, error(text, type="server_error"))

    assert (mapped.status, mapped.error_type, mapped.should_retry) == (
        400,
        "invalid_request_error",
        False,
    )
    assert mapped.message == text


@for_each(
    ("body", "expected"),
    [
        ({"error": "Adapter missing"}, (404, "Adapter missing")),
        (error("No allowed providers are available"), (404, "No allowed providers are available")),
        ({"detail": "Not Found"}, (500, "upstream has no such endpoint")),
        (error("Invalid URL (POST /v1/responses)"), (500, "upstream has no such endpoint")),
        (error("File Not Found"), (500, "upstream has no such endpoint")),
        ({"error": "404 page not found"}, (500, "upstream has no such endpoint")),
        ("<html>Not Found</html>", (500, "upstream has no such endpoint")),
        ({}, (500, "upstream has no such endpoint")),
    ],
)
def test_a_404_with_a_reason_keeps_it(body, expected):
    mapped = map_error(404, body)

    assert (mapped.status, mapped.message) == expected
    assert mapped.should_retry is False


@for_each(
    ("raw", "message"),
    [
        (
            '{"error": {"message": "Tool use is not possible here"}}',
            "Tool use is not possible here",
        ),
        ('{"message": "Out of capacity"}', "Out of capacity"),
        ("The provider is full", "The provider is full"),
        ({"error": {"message": "It is a mapping"}}, "It is a mapping"),
        ('{"unusual": 1}', '{"unusual": 1}'),
        ("{cut", "{cut"),
        ("", "Provider returned error"),
        (7, "Provider returned error"),
    ],
)
def test_the_error_of_a_provider_behind_openrouter_is_shown(raw, message):
    body = error("Provider returned error", code=502, metadata={"raw": raw, "provider_name": "X"})

    assert map_error(502, body).message == message


def test_openrouter_s_own_message_is_shown_if_it_says_something():
    body = error("No endpoints found for x", code=404, metadata={"raw": "other"})

    assert map_error(404, body).message == "No endpoints found for x"
    assert map_error(500, {"error": {"metadata": {"raw": "Only here"}}}).message == "Only here"


def test_an_error_inside_of_an_error_text_is_unwrapped():
    body = error('{"error": {"code": 400, "message": "Please use a valid role", "status": "X"}}')

    assert map_error(400, body).message == "Please use a valid role"
    assert map_error(400, error("[1, 2]")).message == "[1, 2]"


@for_each(
    ("status", "body"),
    [
        (400, {"error": {"code": "invalid_image_format", "message": "Unsupported."}}),
        (400, {"error": {"code": "empty_image_file", "message": "Nothing."}}),
        (400, {"error": {"message": "cannot identify image file <_io.BytesIO object>"}}),
        (500, {"error": {"message": "Failed to load image or audio file"}}),
    ],
)
def test_claude_code_knows_the_words_about_a_picture_that_cannot_be_read(status, body):
    error = map_error(status, body)

    assert error.message == f"Could not process image: {body['error']['message']}"
    assert (error.status, error.error_type) == (400, "invalid_request_error")
