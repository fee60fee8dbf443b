"""Helpers that run a message composer in tests."""

from typing import Any

from translator.capabilities import Profile
from translator.dialect import ResponseContext, TranslationTarget
from translator.message_stream.events_to_message import fold
from translator.message_stream.message_composer import MessageComposer

USAGE = {"input_tokens": 1, "output_tokens": 2}
STRICT = TranslationTarget(profile=Profile(broken_tool_json="error"))


class EventRecorder:
    """Wrap a composer so that each method returns the events that it wrote."""

    def __init__(self, composer: MessageComposer) -> None:
        self._composer = composer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._composer, name)
        if name == "find_block" or not callable(found):
            return found

        def reply(*args: Any, **named: Any) -> list[dict]:
            before = len(self._composer.writer.events)
            found(*args, **named)
            return self._composer.writer.events[before:]

        return reply


def started(**context) -> tuple[EventRecorder, list[dict]]:
    composer = EventRecorder(MessageComposer(ResponseContext(**context)))
    return composer, composer.start(message_id="msg_1", model="m")


def ended(composer: EventRecorder, events: list[dict], reason: str = "end_turn") -> list[dict]:
    return events + composer.finish(stop_reason=reason, usage=USAGE)


def content(events: list[dict]) -> list[dict]:
    return fold(events)["content"]


def kinds(events: list[dict]) -> list[str]:
    return [event["type"].removeprefix("content_block_") for event in events]
