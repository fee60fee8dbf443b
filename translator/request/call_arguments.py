"""The arguments of a tool call in the history, always as a JSON object.

Clients get arguments that are not valid JSON as a raw string, and send the string back; other
clients send null, a list or a number. llama.cpp, vLLM and chat templates parse the arguments of
earlier calls, and Anthropic requires an object: each of them would refuse every later request of
the session (ggml-org/llama.cpp#25510, MoonshotAI/kimi-cli#2165).
"""

from typing import Any, Final

from translator.stream.tool_arguments import compact_json, parse_arguments

from .builder import RequestBuilder

RAW_INPUT: Final = "_raw"
"""The key for the text of arguments that cannot be repaired."""
REPAIRED: Final = ("repaired", "broken arguments of an earlier call are sent as an object")


def object_arguments(value: Any) -> dict[str, Any]:
    """Return the ``input`` of a call as an object; the same object if it is one."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    if not isinstance(value, str):
        return {"value": value}
    parsed, _ = parse_arguments(value)
    return parsed if isinstance(parsed, dict) else {RAW_INPUT: value}


def arguments_json(value: Any, path: str, builder: RequestBuilder) -> str:
    """Return the ``input`` of a call as JSON text; ``path`` is the path of its block."""
    if type(value) is dict:
        return compact_json(value)
    builder.add_note(f"{path}.input", *REPAIRED)
    return compact_json(object_arguments(value))
