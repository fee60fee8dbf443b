"""Errors inside a 200; those of an error status are tested with ``upstream_errors``."""

from tests.for_each import for_each
from translator.openai_chat.chat_stream import find_error


@for_each(
    ("answer", "status", "error_type"),
    [
        ({"error": {"code": 429, "message": "slow down"}}, 429, "rate_limit_error"),
        ({"error": "model 'x' not found"}, 404, "not_found_error"),
        ({"object": "error", "message": "bad", "code": 400}, 400, "invalid_request_error"),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            529,
            "overloaded_error",
        ),
        ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}], 429, "rate_limit_error"),
        ({"detail": "Not Found"}, 502, "api_error"),
        ({"message": "bad", "statusCode": 400}, 400, "invalid_request_error"),
        ({"code": 429, "msg": "slow down"}, 429, "rate_limit_error"),
        ({"error_code": 336, "error_msg": "bad"}, 502, "api_error"),
        (
            {"choices": [{"finish_reason": "error", "error": {"code": 503, "message": "x"}}]},
            529,
            "overloaded_error",
        ),
        (
            {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}},
            429,
            "rate_limit_error",
        ),
        (
            {"choices": [{"finish_reason": "stop"}], "x_groq": {"error": "tool_use_failed"}},
            502,
            "api_error",
        ),
    ],
    ids=[
        "openrouter",
        "ollama",
        "vllm",
        "anthropic",
        "gemini",
        "fastapi",
        "azure",
        "a chinese proxy",
        "baidu",
        "in a choice",
        "minimax",
        "groq",
    ],
)
def test_an_error_in_a_200_body_is_found(answer, status, error_type):
    error = find_error(answer)

    assert (error.status, error.error_type) == (status, error_type)


@for_each(
    "answer",
    [
        {"choices": []},
        {"choices": [{"delta": {"content": "x"}}], "error": None},
        {"choices": ["x"]},
        {"choices": None},
        {"object": "chat.completion.heartbeat"},
        {"choices": [], "base_resp": {"status_code": 0, "status_msg": ""}},
        {"choices": [], "base_resp": None, "x_groq": {"id": "req_1", "error": None}},
    ],
)
def test_a_response_is_not_an_error(answer):
    assert find_error(answer) is None
