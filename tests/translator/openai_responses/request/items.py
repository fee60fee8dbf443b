"""Helpers of the input item tests."""

from tests.fakes.anthropic_requests import assistant, call, result, user
from tests.translator.openai_responses.requests import sent

CALL = {"type": "function_call", "call_id": "toolu_1", "name": "get_weather", "arguments": "{}"}
INPUT_IMAGE = {
    "type": "input_image",
    "detail": "auto",
    "image_url": "data:image/png;base64,iVBORw0KGgo=",
}


def output(value, call_id="toolu_1"):
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def user_part(block, **overrides):
    """Return the content part for a user block."""
    (item,) = sent(user(block), **overrides)
    (part,) = item["content"]
    return part


def result_output(*content, **fields):
    """Return the output for a tool result."""
    return sent(user("Go."), assistant(call()), user(result(*content, **fields)))[2]["output"]


def document(source, **fields):
    return {"type": "document", "source": source, **fields}
