from tests.for_each import for_each
from translator.anthropic.stop_reason import choose_stop_reason, derive_stop_reason, is_window_full
from translator.anthropic.usage import Usage

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TEXT = {"type": "message", "content": [{"type": "output_text", "text": "x"}]}
REFUSAL = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}


def incomplete(reason, *output):
    return {
        "status": "incomplete",
        "incomplete_details": {"reason": reason},
        "output": [*output],
    }


@for_each(
    ("response", "reason"),
    [
        ({"status": "completed", "output": [TEXT]}, "end_turn"),
        ({"status": "completed", "output": [TEXT, CALL]}, "tool_use"),
        ({"output": [{"type": "custom_tool_call"}]}, "tool_use"),
        ({"output": [CALL | {"arguments": '{"a": "b'}]}, "max_tokens"),
        ({"max_output_tokens": 40, "usage": {"output_tokens": 40}, "output": [TEXT]}, "max_tokens"),
        ({"max_output_tokens": 40, "usage": {"output_tokens": 39}, "output": [TEXT]}, "end_turn"),
        ({"max_output_tokens": 40, "usage": {"output_tokens": 40}, "output": [CALL]}, "tool_use"),
        ({"output": [REFUSAL, CALL]}, "refusal"),
        (incomplete("max_output_tokens", TEXT), "max_tokens"),
        (incomplete("max_output_tokens", CALL), "max_tokens"),
        (incomplete("max_output_tokens", REFUSAL), "max_tokens"),
        (incomplete("content_filter", CALL), "refusal"),
        (incomplete("steered"), "end_turn"),
        (incomplete(["unusual"]), "end_turn"),
        ({"incomplete_details": None, "output": None}, "end_turn"),
        ({"output": [None, "x", {"type": "message", "content": [None]}]}, "end_turn"),
        ({}, "end_turn"),
    ],
)
def test_derive_stop_reason(response, reason):
    assert derive_stop_reason(response) == reason


@for_each(
    ("cause", "refused", "called_tool", "reason"),
    [
        ("max_tokens", True, True, "max_tokens"),
        ("model_context_window_exceeded", False, True, "model_context_window_exceeded"),
        ("refusal", False, True, "refusal"),
        (None, True, True, "refusal"),
        ("end_turn", False, True, "tool_use"),
        ("tool_use", False, False, "end_turn"),
        (None, False, False, "end_turn"),
    ],
)
def test_stop_reason_causes_have_an_order(cause, refused, called_tool, reason):
    assert choose_stop_reason(cause, refused=refused, called_tool=called_tool) == reason


REPORTED = {"input": 90, "output": 9, "source": "reported"}


@for_each(
    ("usage", "window", "max_tokens", "full"),
    [
        (Usage(**REPORTED), 100, 50, True),
        (Usage(**{**REPORTED, "input": 40}, cache_read=50), 100, 50, True),
        (Usage(**REPORTED), 200, 50, False),
        (Usage(**REPORTED), 100, 9, False),  # the client's own limit
        (Usage(**REPORTED), 0, 50, False),
        (Usage(**REPORTED), 100, None, False),
        (Usage(**{**REPORTED, "source": "estimated"}), 100, 50, False),
        (Usage(input=99, source="reported"), 100, 50, False),
    ],
)
def test_a_full_window_needs_reported_usage(usage, window, max_tokens, full):
    assert is_window_full(usage, window, max_tokens) is full


def test_a_full_window_replaces_only_max_tokens():
    def reason(cause):
        return choose_stop_reason(cause, refused=False, called_tool=False, window_full=True)

    assert reason("max_tokens") == "model_context_window_exceeded"
    assert reason("end_turn") == "end_turn"
