"""A composer at work, for its tests."""

from translator.anthropic.composer import MessageComposer
from translator.anthropic.fold import fold
from translator.dialect import AnswerContext, Target
from translator.profiles import Profile

USAGE = {"input_tokens": 1, "output_tokens": 2}
STRICT = Target(profile=Profile(broken_tool_json="error"))


def begun(**context) -> tuple[MessageComposer, list[dict]]:
    composer = MessageComposer(AnswerContext(**context))
    return composer, composer.start(message_id="msg_1", model="m", usage=USAGE)


def ended(composer: MessageComposer, events: list[dict], reason: str = "end_turn") -> list[dict]:
    return events + composer.finish(stop_reason=reason, usage=USAGE)


def content(events: list[dict]) -> list[dict]:
    return fold(events)["content"]


def kinds(events: list[dict]) -> list[str]:
    return [event["type"].removeprefix("content_block_") for event in events]
