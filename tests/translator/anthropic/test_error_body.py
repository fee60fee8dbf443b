from tests.for_each import for_each
from translator.anthropic.error_body import (
    MAX_MESSAGE,
    STATUS_BY_TYPE,
    client_message,
    error_body,
    error_type_of,
)


def test_an_error_has_anthropics_body():
    assert error_body("api_error", "x", "req_1") == {
        "type": "error",
        "error": {"type": "api_error", "message": "x"},
        "request_id": "req_1",
    }
    assert error_body("invalid_request_error", "x", "req_1", "some_code")["error"]["details"] == {
        "error_code": "some_code"
    }


@for_each(("error_type", "status"), sorted(STATUS_BY_TYPE.items()))
def test_type_and_status_agree(error_type, status):
    assert error_type_of(status) == error_type


@for_each(
    ("status", "error_type"),
    [
        (408, "timeout_error"),
        (418, "invalid_request_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (599, "api_error"),
    ],
)
def test_a_status_without_its_own_type(status, error_type):
    assert error_type_of(status) == error_type


@for_each(
    ("words", "secret"),
    [
        ("see https://user:pw@host/path?key=1 for more", "host"),
        ("Incorrect API key provided: sk-proj-abc123DEF456.", "abc123DEF456"),
        ("key AIzaSyA1234567890abcdefghij is bad", "AIzaSyA"),
        ("header Bearer abc.def.ghi refused", "abc.def"),
        ("organization org-Abc123Def456 has no quota", "Abc123"),
        ("cannot reach llm.internal:8000 now", "llm.internal"),
        ("cannot reach 10.1.2.3:8000 now", "10.1.2.3"),
        ("Cannot connect to host vllm-7:8000 ssl:default", "vllm-7"),
        ("Connection refused by localhost:11434", "localhost"),
    ],
)
def test_secrets_hosts_and_organizations_are_removed(words, secret):
    message = client_message(words)

    assert secret not in message
    assert "[removed]" in message


def test_a_plain_message_becomes_one_short_line():
    assert client_message("no model  'gpt-5.2'\n here") == "no model 'gpt-5.2' here"
    assert client_message("set max_tokens to 8192, not at most:9") == (
        "set max_tokens to 8192, not at most:9"
    )
    long = client_message("x" * 2 * MAX_MESSAGE)
    assert (len(long), long[-1]) == (MAX_MESSAGE, "…")
