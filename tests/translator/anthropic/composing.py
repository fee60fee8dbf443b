"""A composer at work, for its tests."""

from typing import Any

from translator.anthropic.composer import MessageComposer
from translator.anthropic.fold import fold
from translator.dialect import AnswerContext, Target
from translator.profiles import Profile

USAGE = {"input_tokens": 1, "output_tokens": 2}
STRICT = Target(profile=Profile(broken_tool_json="error"))


class Telling:
    """A composer whose steps return the events that they wrote."""

    def __init__(self, composer: MessageComposer) -> None:
        self._composer = composer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._composer, name)
        if name == "block" or not callable(found):
            return found

        def told(*args: Any, **named: Any) -> list[dict]:
            before = len(self._composer.writer.written)
            found(*args, **named)
            return self._composer.writer.written[before:]

        return told


def begun(**context) -> tuple[Telling, list[dict]]:
    composer = Telling(MessageComposer(AnswerContext(**context)))
    return composer, composer.start(message_id="msg_1", model="m")


def ended(composer: Telling, events: list[dict], reason: str = "end_turn") -> list[dict]:
    return events + composer.finish(stop_reason=reason, usage=USAGE)


def content(events: list[dict]) -> list[dict]:
    return fold(events)["content"]


def kinds(events: list[dict]) -> list[str]:
    return [event["type"].removeprefix("content_block_") for event in events]
