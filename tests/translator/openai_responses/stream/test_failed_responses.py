"""Responses that failed without a reason, whose reason follows in an error event (Azure)."""

from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    created,
    kinds,
    stream,
)

REASONLESS = {"type": "response.failed", "response": {"status": "failed", "error": None}}


@for_each(
    ("code", "text", "error_type"),
    [
        ("too_many_requests", "Too Many Requests", "rate_limit_error"),
        ("server_is_overloaded", "Try later", "overloaded_error"),
    ],
)
def test_the_reason_of_a_failure_may_be_in_the_next_event(code, text, error_type):
    machine = stream()

    events = machine.feed(
        created(), REASONLESS, {"type": "error", "error": {"code": code, "message": text}}
    )

    assert events[-1]["error"] == {"type": error_type, "message": text}


def test_a_policy_in_the_next_event_is_a_refusal():
    machine = stream()
    error = {"code": "content_policy_violation", "message": "Flagged."}

    machine.feed(created(), REASONLESS, {"type": "error", "error": error})

    assert machine.stop_reason == "refusal"


def test_a_failure_whose_reason_never_arrives_is_an_error_at_the_end():
    machine = stream()

    assert "error" not in kinds(machine.feed(created(), REASONLESS))
    assert machine.end()[-1]["error"]["message"] == "upstream response failed"
    assert kinds(stream().feed(created(), REASONLESS, REASONLESS))[-1] == "error"
