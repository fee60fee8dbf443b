"""All answers of the recordings and of the cases, translated: as streams and as whole messages."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.fakes.anthropic_requests import KEYS
from tests.fakes.upstreams import recordings
from translator import anthropic_upstream, openai_chat, openai_responses
from translator.dialect import ResponseContext, TranslationTarget
from translator.message_stream.events_to_message import fold
from translator.stream.sse import SSEDecoder

from .cases import Cases

CHAT = Cases("openai_chat", openai_chat.DIALECT, "generic", "qwen3")
RESPONSES = Cases("openai_responses", openai_responses.DIALECT, "openai", "gpt-5.2", KEYS)
TARGET = TranslationTarget(upstream="local", signing_keys=KEYS)
CONTEXT = ResponseContext(
    message_id="msg_answer", model="claude-corpus", input_estimate=1, target=TARGET
)  # fmt: skip
DIALECTS = {
    "anthropic": anthropic_upstream.DIALECT,
    "chat": openai_chat.DIALECT,
    "responses": openai_responses.DIALECT,
}
FOLDERS = ("chat-stream", "chat-json", "responses-stream", "responses-json")


class Answer(NamedTuple):
    """One translated answer."""

    name: str
    events: list[dict[str, Any]]

    @property
    def failed(self) -> bool:
        return self.events[-1]["type"] == "error"

    @property
    def message(self) -> dict[str, Any]:
        """Return the answer as it is sent to a client that does not stream."""
        return fold(self.events)

    @property
    def typed_message(self) -> dict[str, Any]:
        """Return the message with ``{}`` for broken tool arguments.

        The gateway returns broken arguments of a whole answer as the raw string, against the SDK's
        types, so that the client sees what the model wrote (docs/mapping.md).
        """
        message = self.message
        content = [
            {**block, "input": {}} if isinstance(block.get("input"), str) else block
            for block in message["content"]
        ]
        return {**message, "content": content}


@cache
def recorded() -> list[Answer]:
    """Return the answers of the recordings; none if the corpus is absent."""
    return [
        Answer(f"{folder}-{path.stem}", list(_events(folder, path.read_bytes())))
        for folder in FOLDERS
        for path in recordings.recordings(folder)
    ]


@cache
def of_anthropic() -> list[Answer]:
    """Return the recorded answers of Anthropic, as they came; none if the corpus is absent."""
    return [
        Answer(f"{folder}-{path.stem}", list(_events(folder, path.read_bytes())))
        for folder in ("anthropic-stream", "anthropic-json")
        for path in recordings.recordings(folder)
    ]


@cache
def of_cases() -> list[Answer]:
    return [
        Answer(f"{cases.folder}-{case.name}", cases.run(case).events)
        for cases in (CHAT, RESPONSES)
        for case in cases.all
    ]


def _events(folder: str, raw: bytes) -> Iterator[dict[str, Any]]:
    stream = DIALECTS[folder.partition("-")[0]].stream(CONTEXT)
    if folder.endswith("json"):
        yield from stream.feed_body(json.loads(raw))
        return
    decoder = SSEDecoder()
    for event in [*decoder.feed(raw), *decoder.end()]:
        if not stream.finished and event.data.strip() != b"[DONE]":
            yield from stream.feed(json.loads(event.data))
    yield from stream.end()
