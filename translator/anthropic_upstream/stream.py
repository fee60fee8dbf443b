"""Follows an Anthropic stream that is passed through: guards its grammar, reads what it tells.

Legal events come back as the very object that came in, so that the caller may relay the bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from translator.anthropic.fold import STRING_DELTAS
from translator.anthropic.types import Event
from translator.anthropic.usage import Usage, usage_from_wire
from translator.dialect import AnswerContext, UpstreamError
from translator.errors import TranslatorError
from translator.notes import Note
from translator.secret_redaction import redacted
from translator.unknown_events import UnknownEvents

from .error_body import error_of_event
from .guard import AFTER, INSIDE, KINDS, Guard
from .whole import events_of

CHARACTERS_PER_TOKEN: Final = 4

BAD: Final = UpstreamError(status=502, error_type="api_error", message="upstream sent a bad event")
CUT: Final = replace(BAD, message="upstream stream ended early")


class AnthropicStream:
    """One answer; see ``translator.dialect.Stream`` for what each member promises."""

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.guard = Guard()
        self.notes: list[Note] = []
        self.unknown = UnknownEvents()
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.stop_reason: str | None = None
        self.upstream_id = ""
        self.upstream_model = ""
        self._usage: dict[str, Any] = {}  # cumulative: what came last counts
        self._said = 0  # characters, for an estimate when the stream breaks off

    @property
    def finished(self) -> bool:
        return self.guard.phase == AFTER

    @property
    def usage(self) -> Usage:
        """What the upstream reported; of a broken answer the output is estimated."""
        usage, _ = usage_from_wire(self._usage)
        if self.stop_reason is not None or not self._usage:
            return usage
        guess = -(-self._said // CHARACTERS_PER_TOKEN)
        return replace(usage, output=max(guess, usage.output or 0), output_source="estimated")

    def feed(self, *events: Event) -> list[Event]:
        heard: list[Event] = []
        try:
            for event in events:
                if self.finished:
                    break
                if event["type"] == "error":
                    return heard + self._failed(event)
                self.guard.check(event)
                reader = self.READERS.get(event["type"])
                if reader is not None:
                    reader(self, event)
                elif event["type"] not in KINDS and event["type"] != "ping":
                    self.unknown.add(str(event["type"]))
                heard.append(event)
        except (TranslatorError, LookupError, TypeError, ValueError, AttributeError) as exc:
            self.fault = exc
            return heard + self.fail(BAD)
        return heard

    def feed_whole(self, body: dict[str, Any]) -> list[Event]:
        """Take a whole message, as the events of the stream that it would have been."""
        if self.finished:
            return []
        try:
            events = [body] if body["type"] == "error" else events_of(body)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            self.fault = exc
            return self.fail(BAD)
        return self.feed(*events)

    def end(self) -> list[Event]:
        """Say that upstream's bytes ended; before ``message_stop`` that is a cut."""
        return self.fail(CUT)

    def fail(self, error: UpstreamError) -> list[Event]:
        words = {"type": error.error_type, "message": error.message}
        return self._ended(error, {"type": "error", "error": words})

    def _failed(self, event: Event) -> list[Event]:
        return self._ended(error_of_event(event), redacted(event))

    def _ended(self, error: UpstreamError, event: Event) -> list[Event]:
        if self.finished:
            return []
        self.error = error
        inside = self.guard.phase == INSIDE
        self.guard.phase = AFTER
        closing = {"type": "content_block_stop", "index": self.guard.index}
        return [closing, event] if inside else [event]

    # What the events tell

    def _started(self, event: Event) -> None:
        message = event["message"]
        self.upstream_id = str(message["id"])
        self.upstream_model = str(message.get("model") or "")
        self._learn_reason(message.get("stop_reason"))
        self._report(message.get("usage"))

    def _delta(self, event: Event) -> None:
        name = STRING_DELTAS.get(event["delta"]["type"])
        if name is not None:
            self._said += len(event["delta"][name])

    def _message_delta(self, event: Event) -> None:
        self._learn_reason(event["delta"].get("stop_reason"))
        self._report(event.get("usage"))

    def _learn_reason(self, reason: Any) -> None:
        if isinstance(reason, str):
            self.stop_reason = reason

    def _report(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    # At the foot of the class, where the functions above exist as plain names.
    READERS: ClassVar[Mapping[str, Callable[["AnthropicStream", Event], None]]] = {
        "content_block_delta": _delta,
        "message_delta": _message_delta,
        "message_start": _started,
    }
