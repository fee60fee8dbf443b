"""Hears one response, streamed or whole, and speaks one Anthropic stream.

What each event says goes to ``Speech`` under the item that ``Items`` finds for it; the composer
keeps the Anthropic grammar. The final ``response.output`` is gone through once more, so that what
was never streamed is said all the same; a whole answer is nothing but that.
Source: mapping.md 3.1 and 4.3.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from translator.anthropic.composer import Block, MessageComposer
from translator.anthropic.stop_reason import INCOMPLETE_REASONS, is_window_full, stop_reason_of
from translator.anthropic.types import Event
from translator.anthropic.usage import UNTOLD
from translator.dialect import AnswerContext, UpstreamError
from translator.errors import BadUpstream
from translator.names import message_id
from translator.notes import EMPTY, Note
from translator.steps import step
from translator.unknown_events import UnknownEvents

from .error_body import error_in_body, error_in_event, error_in_response
from .events import ADDED, IGNORED, PINGS, SAID
from .items import Items
from .speech import Speech
from .types import OutputItem, UpstreamEvent
from .usage import ESTIMATED, estimated_usage, usage_of

PING: Final[Event] = {"type": "ping"}
ENDED: Final = ("completed", "incomplete")
"""The states of a response that is an answer."""

CALLS: Final = ("function_call", "custom_tool_call")
"""Types of items that the client has to answer."""

WAITING: Final = UpstreamError(
    status=502,
    error_type="api_error",
    message="upstream waits for an approval of a tool call, which nobody here can give",
    should_retry=False,
)

UNTOLD_WHY: Final = Note(
    "stop_reason", "emulated", "the answer is incomplete for a reason that is not told"
)
"""It is taken for the limit: what is cut must not pass for whole, least of all a call."""

TELLS_PARTS: Final = ("content", "summary")
"""Fields of an item that hold its parts; it is added with none, mostly."""

Place = tuple[str, int, int]
"""Where a piece of text belongs: ``item_id``, ``output_index``, ``content_index``."""


class ResponsesStream:
    """One answer; see ``translator.dialect.Stream`` for what each member promises."""

    bad: ClassVar[str] = "upstream sent a bad event"

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.composer = MessageComposer(context)
        self.notes = self.composer.notes
        self.unknown = UnknownEvents()
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.usage = UNTOLD
        self.stop_reason: str | None = None
        self.upstream_id = ""
        self.upstream_model = ""
        self._items = Items()
        self._speech = Speech(self.composer)
        self.flowing: Block | None = None  # what ``text`` said into last, if nothing came since
        self._place: Place = ("", 0, 0)  # and where that is heard
        self.finished = False

    @step
    def feed(self, *events: UpstreamEvent) -> None:
        handlers = self.HANDLERS
        for event in events:
            if self.finished:
                return
            kind = event.get("type")
            if type(kind) is not str:
                kind = str(kind)
            if kind in handlers:
                handlers[kind](self, event)
            elif kind in ADDED and "part" in event:
                part = event["part"]  # no call for it where it is empty, as nearly all are
                if type(part) is dict and "text" in part and part["text"]:
                    self._part_added(event)
            elif kind in self.PINGS:
                self.composer.writer.written.append(PING.copy())
            elif "type" not in event and self._is_body(event):
                pass
            elif kind not in self.IGNORED:
                # Counted and reported, so that drift shows; an unknown event never ends a stream.
                self.unknown.add(kind)

    def text(self, place: Place, piece: str) -> list[Event]:
        """What ``feed`` makes of a delta of text that says this piece at this place.

        For a caller that read the event with a stricter eye: 7 calls in the middle of a text,
        where ``feed`` takes 26.
        """
        block = self.flowing
        if block is not None and block.flows and self._place == place:
            return self._speech.flow(block, piece)
        return self._plain(place, piece)

    @step
    def _plain(self, place: Place, piece: str) -> None:
        item_id, index, number = place
        item = self._items.of(index, item_id, "message")
        if not self.composer.begun:
            self._started()
        self.flowing, self._place = self._speech.text(item, number, piece), place
        if self.composer.matched_stop is not None:
            self._stopped()

    @step
    def feed_whole(self, body: dict[str, Any]) -> None:
        self._whole(body)

    def _is_body(self, body: dict[str, Any]) -> bool:
        """Hear what came as it does to one who asked for no stream; False: it is nothing of it."""
        failure = error_in_body(body)
        if body.get("object") == "response":
            self._whole(body)
        elif failure is not None:
            self._failed(failure)
        return self.finished

    def _whole(self, body: dict[str, Any]) -> None:
        status = body.get("status")
        failure = error_in_response(body)
        if failure is not None:
            self._failed(failure, body)
            return
        if status not in ENDED and (status is not None or not isinstance(body.get("output"), list)):
            raise BadUpstream(f"upstream answered with a response that is {status!r}")
        self._settled(body)

    @step
    def end(self) -> None:
        """Say that upstream's bytes ended; without a terminal event that is a cut."""
        raise BadUpstream("upstream stream ended early")

    def fail(self, error: UpstreamError) -> list[Event]:
        written = self.composer.writer.written = []
        self.broken(error)
        return written

    def broken(self, error: UpstreamError) -> None:
        """End in an error, unless the answer has ended."""
        if not self.finished:
            self.error = error
            self.finished = True
            self._speech.end_openings()
            self._speech.cut_inputs()
            self.composer.fail(error_type=error.error_type, message=error.message)

    # Beginning and end

    def _started(self, response: Any = None) -> None:
        """``message_start``, on the first event that says anything."""
        if isinstance(response, dict):
            if not self.upstream_id:
                self.upstream_id = str(response.get("id") or "")
            if not self.upstream_model:
                self.upstream_model = str(response.get("model") or "")
        if not self.composer.begun:
            self.composer.start(
                message_id=self.context.message_id or message_id(self.upstream_id),
                model=self.context.model or self.upstream_model,
            )

    def _begun(self, event: UpstreamEvent) -> None:
        if not (self.composer.begun and self.upstream_id and self.upstream_model):
            self._started(event.get("response"))

    def _completed(self, event: UpstreamEvent) -> None:
        response = event.get("response")
        if not isinstance(response, dict):
            raise BadUpstream("upstream ended a stream without its response")
        failure = error_in_response(response)
        if failure is None:
            self._settled(response)
        else:
            self._failed(failure, response)

    def _response_failed(self, event: UpstreamEvent) -> None:
        self._failed(error_in_event(event), event.get("response"))

    def _failed(self, error: UpstreamError, response: Any = None) -> None:
        if isinstance(response, dict):  # what was used until it failed is paid for all the same
            self._counted(response)
        if not error.is_refusal:
            self.broken(error)
            return
        # A policy stopped the answer: agents handle a refusal, and a retry would be useless.
        self._started()
        self._finished("refusal", category=error.refusal_category, explanation=error.message)

    def _settled(self, response: dict[str, Any]) -> None:
        """Say what of the final response was not said yet, and end the message."""
        self._started(response)
        output = response.get("output")
        if not self._items.are_all_of(output):
            self._say_rest(output)
        details = response.get("incomplete_details")
        why = str(details["reason"]) if isinstance(details, dict) and details.get("reason") else ""
        if not why and "status" in response and response["status"] == "incomplete":
            why = "max_output_tokens"
            self.notes.append(UNTOLD_WHY)
        if self._speech.opened:
            self._speech.end_openings()
        if self._speech.inputs and not why:
            self._speech.end_inputs()
        self._counted(response)
        if self.usage.source == "missing" and self._speech.characters:
            self._estimate()
        if self.composer.matched_stop is not None:
            self._finished("stop_sequence")
            return
        if self._speech.waits:
            self.broken(WAITING)
            return
        if why and why not in INCOMPLETE_REASONS:
            self.unknown.add(f"incomplete.{why}")
        cause, window = INCOMPLETE_REASONS.get(why), self.context.target.profile.context_window
        reason = stop_reason_of(
            cause,
            called_tool=self.composer.tool_calls > 0,
            refused=bool(self._speech.refusal),
            window_full=cause == "max_tokens"
            and is_window_full(self.usage, window, self.context.max_tokens),
        )
        if not (output or why) and self._items.are_all_of([]):
            self.notes.append(EMPTY)
        self._finished(reason, explanation=self._speech.refusal or None)

    def _counted(self, response: dict[str, Any]) -> None:
        self.usage, notes = usage_of(response, self._speech.searches)
        self.notes += notes

    def _say_rest(self, output: Any) -> None:
        output = [o for o in output if isinstance(o, dict)] if isinstance(output, list) else []
        for item, body in zip(self._items.settled(output), output, strict=True):
            if not item.done:
                self._speech.end_item(item, body)

    def _finished(
        self, reason: str, *, category: str | None = None, explanation: str | None = None
    ) -> None:
        if self._speech.inputs:
            self._speech.cut_inputs()
        details = None
        if reason == "refusal":
            details = {"type": "refusal", "category": category, "explanation": explanation}
        self.composer.finish(
            stop_reason=reason,
            usage=self.usage.to_wire(),
            stop_sequence=self.composer.matched_stop,
            stop_details=details,
        )
        self.stop_reason = reason  # only now: broken arguments make it an error instead
        self.finished = True

    def _stopped(self) -> None:
        """A stop sequence was found in what was just said: the message ends at once."""
        self._estimate()
        self._finished("stop_sequence")

    def _estimate(self) -> None:
        said = self._speech.characters - self.composer.beyond
        self.usage = estimated_usage(self.usage, self.context.input_estimate, said)
        self.notes.append(ESTIMATED)

    # Items

    def _item_added(self, event: UpstreamEvent) -> None:
        if not self.composer.begun:
            self._started()
        body = _item_in(event)
        item = self._items.added(event, body)
        if item.type in CALLS:  # of others the block opens with the first thing they say
            self._speech.begin_call(item)
            self._speech.open_call(item, body.get("arguments"))
        else:
            for name in TELLS_PARTS:
                if name in body and body[name]:  # noqa: RUF019 - as a call, it costs
                    self._speech.open_parts(item, body[name])

    def _item_done(self, event: UpstreamEvent) -> None:
        if not self.composer.begun:
            self._started()
        body = _item_in(event)
        self._speech.end_item(self._items.finished(event.get("output_index"), body), body)
        if self.composer.matched_stop is not None:
            self._stopped()

    def _words(self, event: UpstreamEvent) -> None:
        """Words of an item, piece by piece or whole."""
        words = SAID[event["type"]]
        item = self._items.of(event.get("output_index"), event.get("item_id"), words.item_type)
        number = event.get(words.number)
        if not self.composer.begun:
            self._started()
        # Where the upstream does not count, it is the first part.
        words.say(
            self._speech,
            item,
            number if isinstance(number, int) else 0,
            event.get(words.field),
        )
        if self.composer.matched_stop is not None:
            self._stopped()

    def _part_added(self, event: UpstreamEvent) -> None:
        """A part that begins with a text."""
        number, kind = ADDED[event["type"]], event["part"].get("type")
        item_type = "message" if kind in ("output_text", "text") else "reasoning"
        item = self._items.of(event.get("output_index"), event.get("item_id"), item_type)
        if not self.composer.begun:
            self._started()
        place = event.get(number)
        self._speech.open_part(item, place if isinstance(place, int) else 0, event["part"])

    def _part_done(self, event: UpstreamEvent) -> None:
        """A finished part; one of reasoning belongs to no message."""
        part = event["part"] if "part" in event else None  # noqa: SIM401 - as a call, it costs
        if type(part) is dict and "type" in part and part["type"] == "reasoning_text":
            text = part.get("text")
            event = {**event, "type": "response.reasoning_text.done", "text": text}
        self._words(event)

    # At the foot of the class, where the functions above exist as plain names.
    HANDLERS: ClassVar[Mapping[str, Callable[["ResponsesStream", UpstreamEvent], None]]] = {
        "error": _response_failed,
        "response.cancelled": _response_failed,  # not in OpenAI's own list
        "response.completed": _completed,
        "response.created": _begun,
        "response.done": _completed,  # nor this
        "response.error": _response_failed,  # nor this
        "response.failed": _response_failed,
        "response.in_progress": _begun,
        "response.incomplete": _completed,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.queued": _begun,
        **dict.fromkeys(SAID, _words),
        "response.content_part.done": _part_done,
    }
    PINGS: ClassVar = PINGS
    IGNORED: ClassVar = IGNORED


def _item_in(event: UpstreamEvent) -> OutputItem:
    item = event.get("item")
    if not isinstance(item, dict):
        raise BadUpstream("upstream sent an output item that is none")
    return item
