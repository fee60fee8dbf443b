"""Hears one response, streamed or whole, and speaks one Anthropic stream.

What each event says goes to ``Speech`` under the item that ``Items`` finds for it; the composer
keeps the Anthropic grammar. The final ``response.output`` is gone through once more, so that what
was never streamed is said all the same; a whole answer is nothing but that.
Source: mapping.md 3.1 and 4.3.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from translator.anthropic.composer import Block, MessageComposer
from translator.anthropic.stop_reason import INCOMPLETE_REASONS, is_window_full, stop_reason_of
from translator.anthropic.types import Event
from translator.anthropic.usage import UNTOLD
from translator.anthropic.writer import Phase
from translator.dialect import AnswerContext, UpstreamError
from translator.errors import BadUpstream, TranslatorError
from translator.names import message_id

from .error_body import error_in_event, error_in_response
from .events import IGNORED, PINGS, SAID
from .items import Items, Part
from .speech import Speech
from .types import OutputItem, UpstreamEvent
from .usage import ESTIMATED, estimated_usage, usage_of

PING: Final[Event] = {"type": "ping"}
ENDED: Final = ("completed", "incomplete")
"""The states of a response that is an answer."""

Place = tuple[str, int, int]
"""Where a piece of text belongs: ``item_id``, ``output_index``, ``content_index``."""


class Flow(NamedTuple):
    """A text that leaves as it comes, and where it is heard."""

    place: Place
    part: Part
    block: Block


class ResponsesStream:
    """One answer; see ``translator.dialect.Stream`` for what each member promises."""

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.composer = MessageComposer(context)
        self.notes = self.composer.notes
        self.unknown: Counter[str] = Counter()
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.usage = UNTOLD
        self.stop_reason: str | None = None
        self.upstream_id = ""
        self.upstream_model = ""
        self._items = Items()
        self._speech = Speech(self.composer)
        self._flow: Flow | None = None  # the text that ``text`` said last, if nothing came since
        self.finished = False

    def feed(self, event: UpstreamEvent) -> list[Event]:
        return self._guarded(self._event, event)

    def text(self, place: Place, piece: str) -> list[Event]:
        """What ``feed`` makes of a delta of text that says this piece at this place.

        For a caller that read the event with a stricter eye: 11 calls in the middle of a text,
        where ``feed`` takes 40.
        """
        flow = self._flow
        if flow is not None and flow.place == place and flow.block.flows:
            return self._speech.flow(flow.part, flow.block, piece)
        item_id, output, content = place
        event = {
            "type": "response.output_text.delta",
            "item_id": item_id,
            "output_index": output,
            "content_index": content,
            "delta": piece,
        }
        events = self._guarded(self._event, event)
        self._flow = self._flow_at(place, event)
        return events

    def feed_whole(self, body: dict[str, Any]) -> list[Event]:
        return self._guarded(self._whole, body)

    def end(self) -> list[Event]:
        """Say that upstream's bytes ended; without a terminal event that is a cut."""
        return self._guarded(self._cut)

    def fail(self, error: UpstreamError) -> list[Event]:
        if self.finished:
            return []
        self.error = error
        self.finished = True
        return self.composer.fail(error_type=error.error_type, message=error.message)

    def _guarded(self, step: Callable[..., list[Event]], *event: Any) -> list[Event]:
        """Take one step; whatever it stumbles over is the upstream's fault and ends the stream."""
        if self.finished:
            return []
        self._flow = None
        writer = self.composer.writer
        writer.written = []
        try:
            return step(*event)
        except (TranslatorError, LookupError, TypeError, ValueError, AttributeError) as exc:
            self.fault = exc
            shown = str(exc) if isinstance(exc, BadUpstream) else "upstream sent a bad event"
            self.fail(UpstreamError(status=502, error_type="api_error", message=shown))
            return writer.written  # with what the step had said before it stumbled

    def _event(self, event: UpstreamEvent) -> list[Event]:
        kind = str(event.get("type"))
        handler = self.HANDLERS.get(kind)
        if handler is not None:
            return handler(self, event)
        if kind in self.PINGS:
            return [PING.copy()]
        if kind not in self.IGNORED:
            # Counted and reported, so that drift shows; an unknown event never ends a stream.
            self.unknown[kind] += 1
        return []

    def _whole(self, body: dict[str, Any]) -> list[Event]:
        status = body.get("status")
        failure = error_in_response(body)
        if failure is not None:
            return self._failed(failure)
        if status not in ENDED and (status is not None or not isinstance(body.get("output"), list)):
            raise BadUpstream(f"upstream answered with a response that is {status!r}")
        return self._settled(body)

    def _cut(self) -> list[Event]:
        raise BadUpstream("upstream stream ended early")

    # Beginning and end

    def _started(self, response: Any = None) -> list[Event]:
        """``message_start``, on the first event that says anything."""
        if response is not None and isinstance(response, dict):
            self.upstream_id = self.upstream_id or str(response.get("id") or "")
            self.upstream_model = self.upstream_model or str(response.get("model") or "")
        if self.composer.writer.phase is not Phase.BEFORE:
            return []
        return self.composer.start(
            message_id=self.context.message_id or message_id(self.upstream_id),
            model=self.context.model or self.upstream_model,
            usage={"input_tokens": self.context.input_estimate, "output_tokens": 0},
        )

    def _begun(self, event: UpstreamEvent) -> list[Event]:
        return self._started(event.get("response"))

    def _completed(self, event: UpstreamEvent) -> list[Event]:
        response = event.get("response")
        if not isinstance(response, dict):
            raise BadUpstream("upstream ended a stream without its response")
        failure = error_in_response(response)
        return self._settled(response) if failure is None else self._failed(failure)

    def _response_failed(self, event: UpstreamEvent) -> list[Event]:
        return self._failed(error_in_event(event))

    def _failed(self, error: UpstreamError) -> list[Event]:
        if not error.is_refusal:
            return self.fail(error)
        # A policy stopped the answer: agents handle a refusal, and a retry would be useless.
        return self._started() + self._finished(
            "refusal", category=error.refusal_category, explanation=error.message
        )

    def _settled(self, response: dict[str, Any]) -> list[Event]:
        """Say what of the final response was not said yet, and end the message."""
        events = self._started(response)
        output = response.get("output")
        output = [o for o in output if isinstance(o, dict)] if isinstance(output, list) else []
        for item, body in zip(self._items.settled(output), output, strict=True):
            if not item.done:
                events += self._speech.end_item(item, body)
        self.usage, notes = usage_of(response, self._speech.searches)
        self.notes += notes
        if self.usage.source == "missing" and self._speech.characters:
            self._estimate()
        if self.composer.matched_stop is not None:
            return events + self._finished("stop_sequence")
        details = response.get("incomplete_details")
        why = str(details["reason"]) if isinstance(details, dict) and details.get("reason") else ""
        if why and why not in INCOMPLETE_REASONS:
            self.unknown[f"incomplete.{why}"] += 1
        profile = self.context.target.profile
        reason = stop_reason_of(
            INCOMPLETE_REASONS.get(why),
            called_tool=self.composer.tool_calls > 0,
            refused=bool(self._speech.refusal),
            window_full=is_window_full(self.usage, profile.context_window, self.context.max_tokens),
        )
        return events + self._finished(reason, explanation=self._speech.refusal or None)

    def _finished(
        self, reason: str, *, category: str | None = None, explanation: str | None = None
    ) -> list[Event]:
        details = {"type": "refusal", "category": category, "explanation": explanation}
        events = self.composer.finish(
            stop_reason=reason,
            usage=self.usage.to_wire(),
            stop_sequence=self.composer.matched_stop,
            stop_details=details if reason == "refusal" else None,
        )
        self.stop_reason = reason  # only now: broken arguments make it an error instead
        self.finished = True
        return events

    def _said(self, events: list[Event]) -> list[Event]:
        """End the message at once if a stop sequence was found in what was just said."""
        if self.composer.matched_stop is None:
            return events
        self._estimate()
        return events + self._finished("stop_sequence")

    def _estimate(self) -> None:
        self.usage = estimated_usage(
            self.usage, self.context.input_estimate, self._speech.characters
        )
        self.notes.append(ESTIMATED)

    # Items

    def _item_added(self, event: UpstreamEvent) -> list[Event]:
        events = self._started()
        body = _item_in(event)
        item = self._items.added(event, body)
        if item.type not in ("function_call", "custom_tool_call"):
            return events  # its block opens with the first thing it says
        events += self._speech.begin_call(item)
        return events + self._speech.arguments(item, 0, body.get("arguments"))

    def _item_done(self, event: UpstreamEvent) -> list[Event]:
        events = self._started()
        body = _item_in(event)
        return self._said(events + self._speech.end_item(self._items.finished(event, body), body))

    def _words(self, event: UpstreamEvent) -> list[Event]:
        """Words of an item, piece by piece or whole."""
        words = SAID[event["type"]]
        item = self._items.of(event, words.item_type)
        number = event.get(words.number)
        events = self._started()
        # Where the upstream does not count, it is the first part.
        events += words.say(
            self._speech,
            item,
            number if isinstance(number, int) else 0,
            event.get(words.field),
        )
        return self._said(events)

    def _flow_at(self, place: Place, event: UpstreamEvent) -> Flow | None:
        """The text of this delta, if the next piece of it would leave as it comes."""
        block = self.composer.live
        if block is None or not block.flows:
            return None
        item, number = self._items.of(event, "message"), place[-1]
        if item.done or block.key != (item.key, "text", number):
            return None
        return Flow(place, item.part("text", number), block)

    # At the foot of the class, where the functions above exist as plain names.
    HANDLERS: ClassVar[Mapping[str, Callable[["ResponsesStream", UpstreamEvent], list[Event]]]] = {
        "error": _response_failed,
        "response.cancelled": _response_failed,  # not in OpenAI's own list
        "response.completed": _completed,
        "response.created": _begun,
        "response.failed": _response_failed,
        "response.in_progress": _begun,
        "response.incomplete": _completed,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.queued": _begun,
        **dict.fromkeys(SAID, _words),
    }
    PINGS: ClassVar = PINGS
    IGNORED: ClassVar = IGNORED


def _item_in(event: UpstreamEvent) -> OutputItem:
    item = event.get("item")
    if not isinstance(item, dict):
        raise BadUpstream("upstream sent an output item that is none")
    return item
