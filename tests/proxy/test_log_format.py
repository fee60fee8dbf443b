"""Log lines: one line for a record, with the request id, without secrets."""

import json
import logging

import pytest

from proxy.log_format import REQUEST, JsonLines, TextLines, without_secrets

SECRETS = [
    "sk-br-abcdefghijklmnop",
    "sk-proj-abc_def-ghijkl",
    "Bearer abcdef.ghijkl-mnop",
    "postgres://bridge:hunter22@db/x",
    "password=hunter22hunter",
    '"api_key": "0123456789abc"',
]


@pytest.fixture
def request_id():
    token = REQUEST.set("req_1")
    yield "req_1"
    REQUEST.reset(token)


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("proxy.x", logging.WARNING, __file__, 1, message, args, None)
    made.__dict__.update(more)
    return made


def test_a_json_line_is_one_object_with_its_request(request_id):
    line = JsonLines().format(record("first\nsecond %s", "ü"))

    line = json.loads(line)
    assert "\n" not in line
    assert line["message"] == "first\nsecond ü"
    assert line["level"] == "WARNING"
    assert line["request_id"] == request_id
    assert line["time"].endswith("Z")


def test_a_json_line_contains_the_exception_without_secrets():
    exc = ValueError("sk-proj-abcdefghijkl")
    made = record("it failed", exc_info=(type(exc), exc, exc.__traceback__))

    line = json.loads(JsonLines().format(made))

    assert "ValueError" in line["exception"]
    assert "sk-proj" not in line["exception"]


def test_a_text_line_names_its_request_once(request_id):
    lines = TextLines("%(message)s")

    assert lines.format(record("it failed")) == "it failed [req_1]"
    assert lines.format(record("req_1 failed")) == "req_1 failed"


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("lines", [JsonLines(), TextLines("%(message)s")])
def test_a_secret_in_a_message_is_hidden(lines, secret):
    line = lines.format(record("the client sent %s today", secret))

    assert "[hidden]" in line
    assert "abcdef" not in line
    assert "hunter22" not in line
    assert "0123456789abc" not in line
    assert "today" in line


@pytest.mark.parametrize(
    "text", ["tokens: 12 of 30", "http://127.0.0.1:8000/v1", "task-based", "no token was given"]
)
def test_text_without_a_secret_is_unchanged(text):
    assert without_secrets(text) == text
