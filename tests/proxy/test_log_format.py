"""Log lines: one line for a record, with the request id, without secrets."""

import json
import logging

import pytest

from proxy.log_format import (
    REPEATED_LINES,
    REPEATED_S,
    REQUEST,
    JsonLines,
    RepeatedLines,
    TextLines,
    without_secrets,
)

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


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_line_that_repeats_within_a_minute_is_counted_instead():
    clock = Clock()
    repeated = RepeatedLines(clock)

    assert repeated.filter(record("redis: %s", "away"))
    for _ in range(184):
        clock.now += 0.3
        assert not repeated.filter(record("redis: %s", "away"))
    assert repeated.filter(record("redis: %s", "another cause"))
    clock.now = 1_000 + REPEATED_S + 1
    last = record("redis: %s", "away")
    assert repeated.filter(last)

    assert last.getMessage() == "redis: away (184 more times in the last 61 s)"


def test_lines_of_the_access_log_are_never_counted():
    repeated = RepeatedLines(Clock())
    line = record("request finished", name="proxy.access")

    assert repeated.filter(line)
    assert repeated.filter(line)


def test_the_number_of_remembered_lines_is_limited():
    repeated = RepeatedLines(Clock())
    for number in range(REPEATED_LINES + 1):
        assert repeated.filter(record("line %d", number))

    assert repeated.filter(record("line %d", 0))
    assert not repeated.filter(record("line %d", REPEATED_LINES))
