"""Translate one Responses API response, streaming or not, to Anthropic stream events.

``OutputItems`` finds the item of each event, ``OutputBlocks`` converts the item's content, and the
message composer writes Anthropic events in a valid order. The final ``response.output`` adds
content that was never streamed; for a non-streamed response, it is the only source. Source:
docs/mapping.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from translator.anthropic import Event
from translator.anthropic.stop_reason import (
    INCOMPLETE_REASONS,
    LIMIT_REACHED,
    is_at_limit,
)
from translator.anthropic.usage import Usage
from translator.dialect import (
    ResponseContext,
    TextLocation,
    UpstreamError,
)
from translator.errors import BadUpstream
from translator.message_stream.response_stream import (
    SPLICED,
    ResponseStream,
    end_on_malformed_data,
)
from translator.notes import EMPTY_OUTPUT, Note
from translator.stream.tool_arguments import is_unclosed
from translator.upstream_errors import map_error, read_error, status_of_error

from .event_table import EVENT_MAPPINGS, IGNORED, PART_ADDED, PINGS
from .output_blocks import OutputBlocks
from .output_items import OutputItems, output_of
from .types import OutputItem, UpstreamEvent
from .usage import read_usage

MESSAGE_FIELDS: Final = ("detail", "error", "errors", "message")
"""Fields with an error in a body that is neither an event nor a response."""


def error_in_body(body: dict[str, Any]) -> UpstreamError | None:
    """Return the error in a body that has the format of HTTP errors; None if there is none."""
    return _failure(body) if any(body.get(name) for name in MESSAGE_FIELDS) else None


def error_in_event(event: UpstreamEvent) -> UpstreamError:
    """Return the error of an ``error`` or ``response.failed`` event.

    The fields of ``error`` may be nested, as in the body of an HTTP error.
    """
    response = event.get("response")
    holder = response if isinstance(response, dict) else event
    error = holder.get("error")
    if not isinstance(error, dict | str) or not error:
        error = {name: holder.get(name) for name in ("code", "message", "param")}
        error["message"] = error["message"] or f"upstream response {holder.get('status', 'failed')}"
    return _failure({"error": error})


def has_reason(event: UpstreamEvent) -> bool:
    """Return whether a ``response.failed`` event contains the reason of the failure."""
    response = event.get("response")
    error = response.get("error") if isinstance(response, dict) else event.get("error")
    fields = read_error({"error": error})
    return bool(fields.message or fields.code not in ("", "server_error"))


def error_in_response(body: dict[str, Any]) -> UpstreamError | None:
    """Return the error that a response with HTTP status 200 contains; None if it has none."""
    if body.get("error") or body.get("status") in ("failed", "cancelled"):
        return error_in_event({"response": body})
    return None


def _failure(body: dict[str, Any]) -> UpstreamError:
    return map_error(status_of_error(read_error(body)), body)


NO_INCOMPLETE_REASON: Final = Note(
    "stop_reason", "emulated", "the response is incomplete without a reason"
)
"""The stop reason is then ``max_tokens``: a truncated response, above all a truncated tool call,
must not pass as complete."""


def find_incomplete_reason(response: Mapping[str, Any], notes: list[Note]) -> str:
    """Return why a response is incomplete; "" if it is reported as complete."""
    details = response.get("incomplete_details")
    if isinstance(details, dict) and details.get("reason"):
        return str(details["reason"])
    if response.get("status") != "incomplete":
        return ""
    notes.append(NO_INCOMPLETE_REASON)
    return "max_output_tokens"


def is_cut(
    response: Mapping[str, Any], usage: Usage, arguments: str | None, context: ResponseContext
) -> bool:
    """Return whether the output limit ended a response that is reported as complete.

    ``arguments``: those of the last call; None without calls. A complete call is not cut, even at
    the limit. A cut call whose tokens were not counted is recognized by arguments that end too
    early.
    """
    limit = response.get("max_output_tokens")
    if type(limit) is not int:
        limit = context.max_tokens or 0
        limit = max(limit, context.target.profile.min_output_tokens) if limit else 0
    if arguments is None:
        return is_at_limit(usage, limit)
    return (usage.output is None or is_at_limit(usage, limit)) and is_unclosed(arguments)


PING: Final[Event] = {"type": "ping"}
FINAL_STATUSES: Final = ("completed", "incomplete")
"""Values of ``status`` of a response that has ended without failure."""

CALL_TYPES: Final = ("function_call", "custom_tool_call")
"""Types of output items that require a result from the client."""

APPROVAL_NEEDED: Final = UpstreamError(
    status=502,
    error_type="api_error",
    message="upstream waits for an approval of a tool call, which the gateway cannot give",
    should_retry=False,
)

PART_FIELDS: Final = ("content", "summary")
"""Fields of an item that contain parts; usually empty when the item is added."""


class ResponsesStream(ResponseStream):
    BAD_EVENT = "upstream sent a bad event"

    def _begin(self) -> None:
        super()._begin()
        # The response's id and service tier in ``response.created``.
        self._created_id, self._service_tier = "", None
        # A failure whose reason has not arrived yet.
        self._failure: tuple[UpstreamError, Any] | None = None
        self._items = OutputItems()
        self._blocks = OutputBlocks(self.composer)

    @end_on_malformed_data
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
            elif kind in PART_ADDED and "part" in event:
                part = event["part"]  # the part is nearly always empty, so this check saves a call
                if type(part) is dict and "text" in part and part["text"]:
                    self._add_initial_text(event)
            elif kind in PINGS:
                self.composer.writer.events.append(PING.copy())
            elif ("type" in event or not self._read_json_body(event)) and kind not in IGNORED:
                # Unknown events are counted and reported, to detect changes of the API; they never
                # end a stream.
                self.unknown.add(kind)

    @end_on_malformed_data
    def feed_text(self, location: TextLocation, text: str) -> None:
        item_id, output_index, content_index = location
        item = self._items.item_for_event(output_index, item_id, "message", is_delta=True)
        self._blocks.add_text(item, content_index, text)
        if self.composer.matched_stop is not None:
            self._finish_at_stop_sequence()

    @end_on_malformed_data
    def feed_body(self, body: dict[str, Any]) -> None:
        self._read_response(body)

    def _read_json_body(self, body: dict[str, Any]) -> bool:
        """Handle a JSON body sent instead of a stream; return False if its format is unknown."""
        failure = error_in_body(body)
        if body.get("object") == "response":
            self._read_response(body)
        elif failure is not None:
            self._handle_error(failure)
        return self.finished

    def _read_response(self, body: dict[str, Any]) -> None:
        status = body.get("status")
        failure = error_in_response(body)
        if failure is not None:
            self._handle_error(failure, body)
            return
        if status not in FINAL_STATUSES and (
            status is not None or not isinstance(body.get("output"), list)
        ):
            raise BadUpstream(f"upstream answered with a response that is {status!r}")
        self._finish_response(body)

    @end_on_malformed_data
    def end(self) -> None:
        """Handle the end of the upstream's bytes: without a final event, this is an error."""
        if self._failure is not None:
            self._handle_error(*self._failure)
            return
        raise BadUpstream("upstream stream ended early")

    def _flush(self) -> None:
        self._blocks.flush_initial_text()
        self._blocks.truncate_inputs()

    # Start and end of the message

    def _start_from(self, response: Any) -> None:
        """Read id and model of the response, and write ``message_start``."""
        if isinstance(response, dict):
            self.upstream_id = self.upstream_id or str(response.get("id") or "")
            self.upstream_model = self.upstream_model or str(response.get("model") or "")
            if response.get("status") in FINAL_STATUSES:  # a whole response has all of its usage
                self.usage, _ = read_usage(response, 0)
        self._start_message()

    def _read_creation(self, event: UpstreamEvent) -> None:
        """Read the first events of a response; those of another one, after content, are no start.

        Some servers send other ids in later events, so only these show a second response.
        """
        response = event.get("response")
        id_ = response.get("id") if isinstance(response, dict) else None
        if self._created_id and id_ and str(id_) != self._created_id and self._items.has_any:
            if not self.context.whole:
                self.end_with_error(SPLICED)
                return
            self._begin_again()
        self._created_id = self._created_id or str(id_ or "")
        if isinstance(response, dict):
            self._service_tier = response.get("service_tier") or self._service_tier
        self._read_response_start(event)

    def _read_response_start(self, event: UpstreamEvent) -> None:
        if not (self.composer.started and self.upstream_id and self.upstream_model):
            self._start_from(event.get("response"))

    def _read_final_response(self, event: UpstreamEvent) -> None:
        response = event.get("response")
        if not isinstance(response, dict):
            raise BadUpstream("upstream ended a stream without its response")
        failure = error_in_response(response)
        if failure is None:
            self._finish_response(response)
        else:
            self._handle_error(failure, response)

    def _read_failure(self, event: UpstreamEvent) -> None:
        """Handle a failure; Azure sends its reason in an ``error`` event after response.failed."""
        failure = error_in_event(event), event.get("response")
        if event["type"] == "response.failed" and self._failure is None and not has_reason(event):
            self._failure = failure
        else:
            self._handle_error(*failure)

    def _handle_error(self, error: UpstreamError, response: Any = None) -> None:
        if isinstance(response, dict):  # the provider bills tokens used before the failure
            self._record_usage(response)
        self._end_as_failed(error)

    def _finish_response(self, response: dict[str, Any]) -> None:
        """Send content of the final response that was not sent yet, and end the message."""
        self._start_from(response)
        output = output_of(response)
        if not self._items.matches_output(output):
            self._emit_missing(output)
        incomplete_reason = find_incomplete_reason(response, self.notes)
        if self._blocks.items_with_initial_text:
            self._blocks.flush_initial_text()
        if self._blocks.open_inputs and not incomplete_reason:
            self._blocks.finish_inputs()
        self._record_usage(response)
        arguments = self._blocks.last_arguments
        if not incomplete_reason and is_cut(response, self.usage, arguments, self.context):
            incomplete_reason = "max_output_tokens"
            self.notes.append(LIMIT_REACHED)
        if self.usage.source == "missing" and self._blocks.characters:
            self._estimate_usage(self._blocks.characters)
        if not incomplete_reason and not self._blocks.waits_for_approval:
            self.composer.show_hidden_reasoning()
        if self.composer.matched_stop is not None:
            self._finish_message("stop_sequence")
            return
        if self._blocks.waits_for_approval:
            self.end_with_error(APPROVAL_NEEDED)
            return
        if incomplete_reason and incomplete_reason not in INCOMPLETE_REASONS:
            self.unknown.add(f"incomplete.{incomplete_reason}")
        cause = INCOMPLETE_REASONS.get(incomplete_reason)
        reason = self._choose_reason(cause, refused=bool(self._blocks.refusal))
        if not (output or incomplete_reason) and self._items.matches_output([]):
            self.notes.append(EMPTY_OUTPUT)
        self._finish_message(reason, explanation=self._blocks.refusal or None)

    def _record_usage(self, response: dict[str, Any]) -> None:
        if self._service_tier and not response.get("service_tier"):
            response = {**response, "service_tier": self._service_tier}
        self.usage, notes = read_usage(response, self._blocks.searches)
        self.notes += notes
        self._drop_doubtful_counts(self._blocks.characters)

    def _emit_missing(self, output: Any) -> None:
        output = [o for o in output if isinstance(o, dict)] if isinstance(output, list) else []
        for item, body in zip(self._items.match_output(output), output, strict=True):
            if not item.is_done:
                self._blocks.finish_item(item, body)

    def _finish_message(self, reason: str, **stop: str | None) -> None:
        if self._blocks.open_inputs:
            self._blocks.truncate_inputs()
        self._blocks.call_ids.finish()
        super()._finish_message(reason, **stop)

    def _finish_at_stop_sequence(self) -> None:
        """End the message before the response ends, because a stop sequence was found."""
        self._estimate_usage(self._blocks.characters)
        self._finish_message("stop_sequence")

    # Output items

    def _add_item(self, event: UpstreamEvent) -> None:
        if not self.composer.started:
            self._start_message()
        body = _item_in(event)
        item = self._items.add_item(event, body)
        if item.type in CALL_TYPES:  # blocks of other items open with their first content
            self._blocks.start_call(item)
            self._blocks.add_initial_arguments(item, body.get("arguments"))
        else:
            for name in PART_FIELDS:
                if name in body and body[name]:  # noqa: RUF019 - this form saves a call for each event
                    self._blocks.add_initial_parts(item, body[name])

    def _finish_item(self, event: UpstreamEvent) -> None:
        if not self.composer.started:
            self._start_message()
        body = _item_in(event)
        self._blocks.finish_item(self._items.finish_item(event.get("output_index"), body), body)
        if self.composer.matched_stop is not None:
            self._finish_at_stop_sequence()

    def _read_text(self, event: UpstreamEvent) -> None:
        """Handle an event with text of an item, which is a piece or the complete text."""
        mapping = EVENT_MAPPINGS[event["type"]]
        item = self._items.item_for_event(
            event.get("output_index"),
            event.get("item_id"),
            mapping.item_type,
            call_id=event.get("call_id"),
            is_delta=mapping.field == "delta",
        )
        number = event.get(mapping.number_field)
        if not self.composer.started:
            self._start_message()
        # An event without a part number belongs to the first part.
        mapping.handler(
            self._blocks,
            item,
            number if isinstance(number, int) else 0,
            event.get(mapping.field),
        )
        if self.composer.matched_stop is not None:
            self._finish_at_stop_sequence()

    def _add_initial_text(self, event: UpstreamEvent) -> None:
        """Handle an event that adds a part with initial text."""
        number_field, kind = PART_ADDED[event["type"]], event["part"].get("type")
        item_type = "message" if kind in ("output_text", "text") else "reasoning"
        item = self._items.item_for_event(
            event.get("output_index"), event.get("item_id"), item_type
        )
        if not self.composer.started:
            self._start_message()
        number = event.get(number_field)
        self._blocks.add_initial_part(item, number if isinstance(number, int) else 0, event["part"])

    def _finish_part(self, event: UpstreamEvent) -> None:
        """Handle a finished part.

        A reasoning part is handled like a ``response.reasoning_text.done`` event.
        """
        part = event["part"] if "part" in event else None  # noqa: SIM401 - this form saves a call for each event
        if type(part) is dict and "type" in part and part["type"] == "reasoning_text":
            text = part.get("text")
            event = {**event, "type": "response.reasoning_text.done", "text": text}
        self._read_text(event)

    # At the end of the class, where the functions above can be referenced by name.
    HANDLERS: ClassVar[Mapping[str, Callable[["ResponsesStream", UpstreamEvent], None]]] = {
        "error": _read_failure,
        "response.cancelled": _read_failure,  # OpenAI's list does not have this type
        "response.completed": _read_final_response,
        "response.created": _read_creation,
        "response.done": _read_final_response,  # OpenAI's list does not have this type
        "response.error": _read_failure,  # OpenAI's list does not have this type
        "response.failed": _read_failure,
        "response.in_progress": _read_creation,
        "response.incomplete": _read_final_response,
        "response.output_item.added": _add_item,
        "response.output_item.done": _finish_item,
        "response.queued": _read_response_start,
        **dict.fromkeys(EVENT_MAPPINGS, _read_text),
        "response.content_part.done": _finish_part,
    }


def _item_in(event: UpstreamEvent) -> OutputItem:
    item = event.get("item")
    if not isinstance(item, dict):
        raise BadUpstream("upstream sent an output item that is none")
    return item
