"""One event is one line of the log, whatever a stranger wrote into it."""

import io
import json
import logging

import pytest

from proxy.logs import JsonLines, TextLines

HOSTILE = (
    "a\nERROR root: forged", "a\r\nforged", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "a\x85b", "a\u2028b",
    "a\u2029b", "a\x00b", "\u202egnp.exe", "a\x0bb\x0cc", "\x1c\x1d\x1e", "a\x7fb", "\u2066hidden\u2069", "%s %d %n {0}",
)  # fmt: skip


def logged(formatter, text, **more):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    record = logging.LogRecord(
        "proxy.gateway", logging.WARNING, "f", 1, "asked by %s", (text,), None
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
    told = logged(formatter, text)

    assert told.endswith("\n")
    assert len(told[:-1].splitlines()) == 1  # which also splits at \x0b, \x85 and \u2028
    assert told[:-1].isprintable()


def test_a_json_line_gives_the_text_back():
    assert json.loads(logged(JsonLines(), HOSTILE[0]))["message"] == f"asked by {HOSTILE[0]}"


def test_a_traceback_keeps_its_lines():
    try:
        int("x\x1b[31m")
    except ValueError as exc:
        told = logged(TextLines("%(message)s"), "a", exc_info=(type(exc), exc, exc.__traceback__))

    assert len(told.splitlines()) > 3


def test_a_hostile_client_forges_no_line_in_the_log_of_a_running_gateway(running):
    before = len(running.process.log)
    running.process.ask(
        "GET", "/v1/models/%0aERROR%20forged%1b%5b31m", headers={"user-agent": "a\x85b"}
    )
    running.process.ask("GET", "/admin/%0d%0aforged", headers={"host": "evil.example"})

    told = running.process.log[before:]
    assert "\x1b" not in told
    assert not [
        line for line in told.splitlines() if line.lstrip().startswith(("forged", "ERROR forged"))
    ]
    assert "Traceback" not in told
