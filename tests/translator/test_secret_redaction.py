"""Upstream error texts are truncated and contain no credentials."""

import json

from tests.for_each import for_each
from translator.secret_redaction import (
    MAX_BODY,
    MAX_TEXT,
    clean_error_text,
    mask_secrets,
    redact_error_body,
    redact_secrets,
)

SECRETS = (
    "sk-" + "0123456789abcdef", "sk-proj-" + "0123456789", "sk-ant-" + "api03-0123456789", "sk-br-" + "AbCd1234efgh",
    "gsk_" + "0123456789abcdef", "xai-0123456789abcdef", "ghp_" + "0123456789abcdef", "glpat-" + "0123456789ab",
    "xoxb-" + "0123456789-abc", "hf_0123456789abcdef", "AIza" + "SyA0123456789abcdefgh", "AKIA" + "0123456789ABCDEF",
    "ya29.a0123456789", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln", "sk-****************abcd",
)  # fmt: skip
LABELLED = (
    ("Bearer ", "abcdef012345"), ("authorization: ", "Basic dXNlcjpzZWNyZXQ="), ("x-api-key: ", "abcdef012345"),
    ('{"api_key": "', "abcdef012345"), ("password=", "hunter22hunter"), ("https://user:", "hunter22"),
    ('\\"token\\": \\"', "0123456789abc"), ("authorization: ", "Bearer abcdef012345"),
)  # fmt: skip
ORDINARY = (
    "messages.0.content: at most 8192 tokens: 12 of 30",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    "tools.0.custom.input_schema: property keys must match '^[a-zA-Z0-9_.-]{1,64}$'",
    "no token was given; see https://docs.anthropic.com/en/api/errors",
    "risk-assessments and task-based work",
    "`tool_use` ids were found without `tool_result` blocks: toolu_01A09q90qw90lq917835lq9",
)


@for_each("secret", SECRETS)
def test_what_has_the_shape_of_a_key_is_removed(secret):
    assert clean_error_text(f"the key {secret} is wrong") == "the key [removed] is wrong"
    assert mask_secrets(f"<{secret}>".encode()) == b"<%b>" % (b"*" * len(secret))


@for_each(("label", "secret"), LABELLED)
def test_what_a_label_calls_a_secret_is_removed_and_the_label_stays(label, secret):
    end = "@host" if "://" in label else ' "'

    assert clean_error_text(f"x {label}{secret}{end}") == f"x {label}[removed]{end}"
    raw = f"x {label}{secret}{end}".encode()
    assert mask_secrets(raw) == f"x {label}{'*' * len(secret)}{end}".encode()


@for_each("text", ORDINARY)
def test_what_is_no_secret_stays(text):
    assert clean_error_text(text) == redact_secrets(text) == text
    assert mask_secrets(text.encode()) == text.encode()


def test_a_text_is_cut_before_any_pattern_sees_it():
    assert clean_error_text("x" * 10**6) == "x" * MAX_TEXT


def test_a_body_without_a_secret_is_the_very_object():
    body = {"type": "error", "error": {"type": "api_error", "message": "m", "n": [1, None, 2.5]}}

    assert redact_error_body(body) is body


def test_a_body_is_redacted_at_each_position():
    body = {"error": {"message": "m", "sk-0123456789ab": ["sk-0123456789ab", {"x": 1}]}}

    assert redact_error_body(body) == {
        "error": {"message": "m", "[removed]": ["[removed]", {"x": 1}]}
    }


def test_a_body_of_many_texts_is_bounded():
    body = {"error": ["x" * MAX_TEXT] * 10_000, "more": {"a": "b"}, "most": ["c"]}

    reply = json.dumps(redact_error_body(body))

    assert len(reply) < MAX_BODY + 10_000 * 4 + 200
    assert '"b"' not in reply
    assert '"c"' not in reply
