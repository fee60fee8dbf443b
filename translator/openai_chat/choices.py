"""Choices that are no plain pieces: one answer told as two, and an answer told twice."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from .calls import ToolCalls
from .finish import FINISH_REASONS
from .speech import Kind, Speech

Choice = dict[str, Any]

FIRST: Final = (None, 0, "0")
"""How servers count the one choice that they were asked for."""


def joined(first: Choice, choices: Sequence[Any]) -> Choice:
    """The choices that are one answer, as one. Copilot tells its text and its calls apart.

    Some have no index; where they are counted, the first one stops for calls that it does not
    hold. Any other choice is another answer, which nobody asked for.
    Source: https://github.com/ericc-ch/copilot-api/pull/81, https://github.com/HKUDS/nanobot/pull/1555
    """
    more = [c for c in choices if isinstance(c, dict) and c is not first and _continues(c, first)]
    if not more:
        return first
    key = "delta" if isinstance(first.get("delta"), dict) else "message"
    said: dict[str, Any] = {}
    for choice in (first, *more):
        part = choice.get(key)
        for name, value in part.items() if isinstance(part, dict) else ():
            said[name] = _both(said.get(name), value)
    reasons = (choice.get("finish_reason") for choice in (first, *more))
    return first | {key: said, "finish_reason": next(filter(None, reasons), None)}


def _continues(choice: Choice, first: Choice) -> bool:
    if not choice.get("index"):
        return True
    message = first.get("message")
    return (
        isinstance(message, dict)
        and not message.get("tool_calls")
        and FINISH_REASONS.get(str(first.get("finish_reason"))) == "tool_use"
    )


def _both(before: Any, value: Any) -> Any:
    if type(before) is type(value) and isinstance(value, str | list) and before != value:
        return before + value
    return before or value


def message_of(choice: Choice) -> Any:
    """What a choice says where it has no delta: its message, or nothing but text.

    Some servers stream the choices of plain completions, or text where the delta should be.
    """
    message = choice.get("message")
    if message is None:
        delta = choice.get("delta")
        text = choice.get("text") or delta
        message = {"content": text} if text and isinstance(text, str) else delta
    return message


def repeats(message: dict[str, Any], thoughts: Sequence[str], speech: Speech, before: bool) -> bool:
    """Whether a message tells all that was said again, as of servers that know no deltas.

    One that tells no more than that does so if the one ``before`` it did: a word may be said twice.
    """
    reasoning = (message.get(name) for name in thoughts)
    told: dict[Kind, str] = {
        "text": speech.text_in(message.get("content")),
        "thinking": next((each for each in reasoning if isinstance(each, str) and each), ""),
    }
    said = {kind: speech.told(kind) for kind in told}
    if not all(told[kind].startswith(said[kind]) for kind in told):
        return False
    return before or any(said[kind] and told[kind] != said[kind] for kind in told)


def unsaid(
    message: dict[str, Any], thoughts: Collection[str], speech: Speech, calls: ToolCalls
) -> dict[str, Any]:
    """What of a message that repeats a stream in whole was not said in pieces before it.

    MiniMax ends each stream with one. Where it contradicts the pieces, they count. ``thoughts``
    are the fields that hold reasoning.
    """
    text, thought = speech.told("text"), speech.told("thinking")
    rest: dict[str, Any] = {}
    for name, value in message.items():
        match name:
            case "tool_calls" if isinstance(value, list):
                rest[name] = [call for call in value if not calls.heard(call)]
            case "content" if text or thought:
                rest[name] = _behind(text, speech.text_in(value))
            case "refusal":
                rest[name] = _behind(speech.refusal, value)
            case "reasoning_details" if thought:
                pass
            case _ if thought and name in thoughts:
                rest[name] = _behind(thought, value)
            case _:
                rest[name] = value
    return rest


def _behind(said: str, whole: Any) -> str:
    if not isinstance(whole, str) or not whole.startswith(said):
        return ""
    return whole[len(said) :]
