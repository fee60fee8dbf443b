"""Fast detection of chunks that contain only text, as nearly all chunks do."""

from typing import Any, Final

CHUNK_FIELDS: Final = (
    "base_resp", "citations", "error", "search_results", "timings", "type", "usage", "x_groq",
)  # fmt: skip
"""Fields beside ``choices`` that make a chunk more than plain text, unless they are empty."""
CHOICE_FIELDS: Final = ("error", "finish_reason", "index", "usage")
"""Fields of a choice that make it more than plain text; the first choice has the index 0."""
TEXT_FIELDS: Final = frozenset({"content", "role"})


def plain_text(chunk: dict[str, Any]) -> str:
    """Return the text of a chunk; "" if it has no text, or has content besides the text."""
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1 or any(map(chunk.get, CHUNK_FIELDS)):
        return ""
    if "object" in chunk and chunk["object"] == "error":
        return ""
    choice = choices[0]
    if type(choice) is not dict or any(map(choice.get, CHOICE_FIELDS)):
        return ""
    delta = choice.get("delta")
    if type(delta) is not dict or "content" not in delta:
        return ""
    if len(delta) > 1 and any(delta[name] for name in delta.keys() - TEXT_FIELDS):
        return ""
    text = delta["content"]
    return text if type(text) is str else ""
