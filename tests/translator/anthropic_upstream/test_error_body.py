from tests.for_each import for_each
from translator.anthropic_upstream import DIALECT
from translator.anthropic_upstream.error_body import error_from_event
from translator.dialect import UpstreamError


def anthropic(error_type: str, message: object) -> dict:
    return {"type": "error", "error": {"type": error_type, "message": message}}


@for_each(
    ("status", "body", "error_type", "message"),
    [
        (
            400,
            anthropic("invalid_request_error", "see https://x"),
            "invalid_request_error",
            "see https://x",
        ),
        (529, anthropic("overloaded_error", "Overloaded"), "overloaded_error", "Overloaded"),
        (500, anthropic("api_error", None), "api_error", "upstream failed"),
        (
            404,
            {"error": {"message": "no such model at https://x"}},
            "not_found_error",
            "no such model at [removed]",
        ),
        (404, {"error": "model not found"}, "not_found_error", "model not found"),
        (502, "<html>", "api_error", "upstream returned HTTP 502 (text/html)"),
        (503, None, "overloaded_error", "upstream returned HTTP 503"),
        (
            400,
            {"type": "error", "error": {"type": 5}},
            "invalid_request_error",
            "upstream returned HTTP 400",
        ),
        (
            400,
            [anthropic("invalid_request_error", "in a list")],
            "invalid_request_error",
            "in a list",
        ),
        (400, {"error": {"message": 5}}, "invalid_request_error", "upstream returned HTTP 400"),
    ],
)
def test_an_error_preserves_status_and_message(status, body, error_type, message):
    assert DIALECT.map_error(status, body) == UpstreamError(
        status=status, error_type=error_type, message=message
    )


def test_a_rejected_upstream_key_is_not_a_client_error():
    error = DIALECT.map_error(401, anthropic("authentication_error", "invalid x-api-key"))

    assert (error.status, error.error_type, error.should_retry) == (500, "api_error", False)
    assert "x-api-key" not in error.message


@for_each(
    ("event", "status", "message"),
    [
        (anthropic("rate_limit_error", "slow down"), 429, "slow down"),
        (anthropic("tomorrow_error", "unusual"), 500, "unusual"),
        ({"type": "error"}, 500, "upstream failed"),
    ],
)
def test_an_error_in_a_stream_has_the_status_of_its_type(event, status, message):
    error = error_from_event(event)

    assert (error.status, error.message) == (status, message)
