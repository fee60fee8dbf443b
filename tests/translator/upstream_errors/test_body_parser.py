"""Error bodies of many servers are parsed into one record without exceptions."""

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.upstream_errors import ErrorFields, read_error
from translator.upstream_errors.body_parser import seconds_in

OPENAI = {
    "error": {"message": "No.", "type": "invalid_request_error", "code": "bad", "param": "input"}
}
GEMINI = [
    "noise",
    {
        "error": {
            "code": 429,
            "status": "RESOURCE_EXHAUSTED",
            "message": "Quota.",
            "details": ["x", {"@type": "Help"}, {"retryDelay": "7s"}],
        }
    },
]
AZURE_FILTER = {
    "error": {
        "code": "content_filter",
        "status": 400,
        "message": "Filtered.",
        "innererror": {
            "content_filter_result": {
                "violence": {"filtered": True},
                "hate": {"filtered": True},
                "sexual": {"filtered": False},
                "unusual": True,
            }
        },
    }
}


def test_openai():
    assert read_error(OPENAI) == ErrorFields(
        message="No.", type="invalid_request_error", code="bad", param="input"
    )


def test_a_gemini_error_list_with_retry_delay_is_parsed():
    fields = read_error(GEMINI)

    assert (fields.status, fields.code, fields.retry_after_s) == (429, "RESOURCE_EXHAUSTED", 7)


def test_azure_names_the_filters_that_object():
    fields = read_error(AZURE_FILTER)

    assert (fields.code, fields.status, fields.filters) == (
        "content_filter",
        400,
        ("hate", "violence"),
    )


@for_each(
    ("body", "message", "status"),
    [
        ({"error": "model not found"}, "model not found", None),  # Ollama
        ({"code": "invalid-argument", "error": "Incorrect API key."}, "Incorrect API key.", None),
        ({"object": "error", "message": "Bad.", "code": 400}, "Bad.", 400),  # vLLM
        ({"detail": "Invalid API Key"}, "Invalid API Key", None),  # Mistral
        (
            {"detail": [{"msg": "too short"}, {"msg": "unusual"}]},
            "too short; unusual",
            None,
        ),  # FastAPI
        ({"detail": {"error": "Model busy"}}, "Model busy", None),  # DeepInfra
        ({"errors": [{"message": "bad thing"}]}, "bad thing", None),  # Cloudflare
        ({"Message": "Not authorized"}, "Not authorized", None),  # AWS
        ({"statusCode": 401, "message": "Denied."}, "Denied.", 401),  # Azure API Management
        ({"error": {"code": "401", "message": "Denied."}}, "Denied.", 401),
        ({"error": {"code": 200, "message": "Unusual."}}, "Unusual.", None),
        ({"error": {"code": True, "message": {"detail": "Deep."}}}, "Deep.", None),
    ],
)
def test_the_shapes_of_other_servers(body, message, status):
    fields = read_error(body)

    assert (fields.message, fields.status, fields.readable) == (message, status, True)


@for_each(
    ("body", "message"),
    [
        ("<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (None, ""),
        ([], ""),
        ({}, ""),
        (7, ""),
    ],
)
def test_what_is_no_error_body_is_not_readable(body, message):
    fields = read_error(body)

    assert (fields.message, fields.readable) == (message, False)


@for_each(
    ("sentence", "seconds"),
    [
        ("Please try again in 2.5s.", 3),
        ("Please try again in 6m0s.", 300),
        ("Please retry after 14 seconds", 14),
        ("try again in 120ms", 1),
        ("try again in 1h2m", 300),
        ("try again in 1.2.3s", 2),
        (f"try again in {'9' * 400}s", 300),
        ("try again in 0s", None),
        ("try again later", None),
    ],
)
def test_a_retry_delay_in_a_sentence_is_parsed_and_clamped(sentence, seconds):
    assert read_error({"error": {"message": sentence}}).retry_after_s == seconds


@for_each(
    ("emitted", "seconds"),
    [("6m0s", 360), ("500ms", 0.5), ("12", 12), ("1H", 3600), ("soon", None)],
)
def test_a_duration_is_so_many_seconds(emitted, seconds):
    assert seconds_in(emitted) == seconds


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "status", "details", "innererror", "detail"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=9,
)


@given(body=JSON)
def test_any_json_body_is_read_without_an_exception(body):
    assert isinstance(read_error(body), ErrorFields)
