"""One event is one line of the log, even if it contains hostile text."""

import io
import json
import logging

import pytest

from proxy.log_format import JsonLines, TextLines

HOSTILE = (
    "a\nERROR root: forged", "a\r\nforged", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "a\x85b", "a\u2028b",
    "a\u2029b", "a\x00b", "\u202egnp.exe", "a\x0bb\x0cc", "\x1c\x1d\x1e", "a\x7fb", "\u2066hidden\u2069", "%s %d %n {0}",
)  # fmt: skip


def format_record(formatter, text, **more):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    record = logging.LogRecord(
        "proxy.gateway", logging.WARNING, "f", 1, "sent by %s", (text,), None
    )
    vars(record).update(more)
    handler.handle(record)
    return stream.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "formatter",
    [TextLines("%(levelname)s %(name)s: %(message)s"), JsonLines()],
    ids=["text", "json"],
)
def test_hostile_text_stays_within_its_line(formatter, text):
    output = format_record(formatter, text)

    assert output.endswith("\n")
    assert len(output[:-1].splitlines()) == 1  # splitlines also splits at \x0b, \x85 and \u2028
    assert output[:-1].isprintable()


def test_json_log_line_decodes_to_the_text():
    assert json.loads(format_record(JsonLines(), HOSTILE[0]))["message"] == f"sent by {HOSTILE[0]}"


def test_traceback_has_several_lines():
    try:
        int("x\x1b[31m")
    except ValueError as exc:
        output = format_record(
            TextLines("%(message)s"), "a", exc_info=(type(exc), exc, exc.__traceback__)
        )

    assert len(output.splitlines()) > 3


def test_hostile_request_forges_no_log_line(running):
    before = len(running.process.log)
    running.process.request(
        "GET", "/v1/models/%0aERROR%20forged%1b%5b31m", headers={"user-agent": "a\x85b"}
    )
    running.process.request("GET", "/admin/%0d%0aforged", headers={"host": "evil.example"})

    output = running.process.log[before:]
    assert "\x1b" not in output
    assert not [
        line for line in output.splitlines() if line.lstrip().startswith(("forged", "ERROR forged"))
    ]
    assert "Traceback" not in output
