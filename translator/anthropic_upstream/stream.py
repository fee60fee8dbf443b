"""Validate an Anthropic upstream's stream, repair its order, read its usage and stop reason.

Valid events are returned as the same objects, so that the caller can relay the original bytes.
"""

import contextlib
from dataclasses import replace
from typing import Any, Final

from translator.anthropic import Event, Message
from translator.anthropic.token_estimate import CALL_CHARACTERS, tokens_of_characters
from translator.anthropic.usage import NO_USAGE, Usage, merge_usage, usage_from_wire
from translator.dialect import ResponseContext, UnknownEvents, UpstreamCall, UpstreamError
from translator.errors import IllegalMove
from translator.message_stream.events_to_message import STRING_DELTAS
from translator.message_stream.response_stream import (
    FIRST_DROPPED,
    MALFORMED_DATA_ERRORS,
    SPLICED,
    message_id,
)
from translator.message_stream.stream_grammar import AFTER, EVENT_TYPES, INSIDE, StreamValidator
from translator.notes import Note
from translator.secret_redaction import redact_error_body
from translator.stream.tool_arguments import compact_json, parse_arguments

from .error_body import error_from_event
from .stream_repair import StreamRepair, has_missing_fields

Delta = dict[str, Any]

FINAL_FIELDS: Final = ("stop_reason", "stop_sequence", "stop_details")
"""Fields of a message that a stream sends in its final ``message_delta``."""


def message_to_events(message: Message) -> list[Event]:
    """Return the stream events of a message; combining the events again gives the same message."""
    if message["type"] != "message":
        raise ValueError(f"a whole answer is a message, not {message['type']!r}")
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    start.pop("stop_details", None)
    events: list[Event] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        content_block, deltas = _start_and_deltas(block)
        events.append(
            {"type": "content_block_start", "index": index, "content_block": content_block}
        )
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    end = {name: message[name] for name in FINAL_FIELDS if name in message}
    events.append({"type": "message_delta", "delta": end, "usage": usage})
    events.append({"type": "message_stop"})
    return events


def _start_and_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[Delta]]:
    """Split a content block into the block in its start event, and its deltas."""
    match block["type"]:
        case "text":
            deltas: list[Delta] = [
                {"type": "citations_delta", "citation": citation}
                for citation in block.get("citations") or ()
            ]
            start = {
                name: value for name, value in block.items() if name != "citations" or not value
            }
            text_deltas = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
            return {**start, "text": ""}, [*text_deltas, *deltas]
        case "thinking":
            text = block["thinking"]
            signature = {"type": "signature_delta", "signature": block.get("signature") or ""}
            thinking_deltas = [{"type": "thinking_delta", "thinking": text}] if text else []
            return {**block, "thinking": "", "signature": ""}, [*thinking_deltas, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            value = block["input"]  # a text is arguments that are no valid JSON
            arguments = value if isinstance(value, str) else compact_json(value) if value else ""
            delta = {"type": "input_json_delta", "partial_json": arguments}
            return {**block, "input": {}}, [delta]
        case _:
            return block, []


BAD_EVENT: Final = UpstreamError(
    status=502, error_type="api_error", message="upstream sent a bad event"
)
ENDED_EARLY: Final = replace(BAD_EVENT, message="upstream stream ended early")
CALL_BLOCKS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})

ESTIMATED_USAGE: Final = Note(
    "usage", "emulated", "the upstream reported no usage; it is estimated"
)
REPAIRED_INPUT: Final = Note("content", "repaired", "a tool's input was no object")
FOREIGN_REASON: Final = Note("stop_reason", "repaired", "the upstream named it as OpenAI does")
FOREIGN_REASONS: Final = {
    "stop": "end_turn",
    "eos": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""What compatible servers send as ``stop_reason`` -> Anthropic's reason. SDKs take no other."""
INPUT_IN_START: Final = Note("content", "repaired", "a tool's input came in the block's start")


def _has_early_input(block: dict[str, Any]) -> bool:
    """Return whether the start of a call has an input that its client expects as deltas.

    Anthropic itself starts the calls that its code execution makes with their whole input.
    """
    if block["type"] not in CALL_BLOCKS or not block.get("input"):
        return False
    caller = block.get("caller")
    return not isinstance(caller, dict) or caller.get("type") == "direct"


def _with_counts(usage: Any, estimates: dict[str, int]) -> tuple[Any, bool]:
    """Return ``usage`` with counts that are ints, usually itself, and whether any is estimated.

    A count that is sent in another way (``"12"``, ``prompt_tokens``) is taken, else the estimate.
    """
    known = usage if isinstance(usage, dict) else {}
    missing = [name for name in estimates if type(known.get(name)) is not int]
    if not missing:
        return usage, False
    counts, _ = usage_from_wire(known)
    read = {"input_tokens": counts.input, "output_tokens": counts.output}
    found = {name: read[name] for name in missing if read[name] is not None}
    ints = {name: count for name, count in known.items() if type(count) is int}
    return {**known, **estimates, **ints, **found}, len(found) < len(missing)


def _input_json(value: Any) -> str:
    """Return a call's whole input as JSON text; a few servers send it as such a text already."""
    if isinstance(value, str):
        parsed, _ = parse_arguments(value)
        return compact_json(parsed) if isinstance(parsed, dict) else value
    return compact_json(value)


class AnthropicStream:
    """Processes one upstream response; ``translator.dialect.Stream`` documents the members."""

    def __init__(self, context: ResponseContext) -> None:
        self.context = context
        self.validator = StreamValidator()
        # None until the first event in an invalid order arrives.
        self._repair: StreamRepair | None = None
        self.notes: list[Note] = []
        self.call_records: dict[str, UpstreamCall] = {}  # an Anthropic upstream needs none
        self.unknown = UnknownEvents()
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.stop_reason: str | None = None
        self.upstream_id = ""
        self.upstream_model = ""
        # The whole inputs of calls that came in the start of their blocks, by block index.
        self._early_inputs: dict[Any, dict[str, Any]] = {}
        self.is_changed = False  # whether the client gets other events than the upstream sent
        self._usage = NO_USAGE  # all usage that the upstream reported so far
        # Characters of the response, to estimate the output tokens if the stream breaks.
        self._characters = 0

    @property
    def finished(self) -> bool:
        return self.validator.phase == AFTER

    @property
    def usage(self) -> Usage:
        """Return the reported usage; what is not reported of a finished message is estimated.

        The output tokens of an incomplete response are estimated as well.
        """
        usage = self._usage
        if self.stop_reason is None:
            if usage is NO_USAGE:
                return usage
            output = max(self._output_estimate, usage.output or 0)
            return replace(usage, output=output, output_source="estimated")
        if usage.source == "reported":
            return usage
        has_input, has_output = usage.input is not None, usage.output is not None
        return replace(
            usage,
            input=usage.input if has_input else self.context.input_estimate,
            output=usage.output if has_output else self._output_estimate,
            source="reported" if has_input else "estimated",
            output_source="reported" if has_output else "estimated",
        )

    @property
    def _output_estimate(self) -> int:
        return tokens_of_characters(self._characters)

    def feed(self, *events: Event) -> list[Event]:
        accepted: list[Event] = []
        event: Event = {}
        try:
            for event in events:
                if self.finished:
                    break
                if event["type"] == "error":
                    error, body = error_from_event(event), redact_error_body(event)
                    return accepted + self._end_with(error, body)
                if event["type"] == "message_start" and self._is_spliced(event["message"]):
                    if not self.context.whole:
                        return accepted + self.fail(SPLICED)
                    # A client that does not stream has not seen the first generation.
                    self.notes.append(FIRST_DROPPED)
                    self.validator, self._repair, self.is_changed = StreamValidator(), None, True
                    self._early_inputs.clear()
                    self.stop_reason, self._usage, self._characters = None, NO_USAGE, 0
                for each in self._completed(event):
                    self._accept(each, accepted)
                match event["type"]:
                    case "content_block_delta":  # nearly every event
                        name = STRING_DELTAS.get(event["delta"]["type"])
                        if name is not None:
                            self._characters += len(event["delta"][name])
                    case "content_block_start":
                        block = event["content_block"]
                        if block["type"] in CALL_BLOCKS:
                            self._characters += len(block["name"]) + CALL_CHARACTERS
                    case "message_delta":
                        self._read_end(event["delta"].get("stop_reason"), event.get("usage"))
                    case "message_start":
                        message = event["message"]
                        self.upstream_id = str(message["id"])
                        self.upstream_model = str(message.get("model") or "")
                        self._read_end(message.get("stop_reason"), message.get("usage"))
                    case kind if kind not in EVENT_TYPES and kind != "ping":
                        self.unknown.add(str(kind))
        except MALFORMED_DATA_ERRORS as exc:
            self.fault = exc
            # The error names the illegal event, without text of the upstream.
            named = event.get("type") if isinstance(event, dict) else None
            known = named if isinstance(named, str) and named in EVENT_TYPES else "event"
            reason = str(exc) if isinstance(exc, IllegalMove) else f"a malformed {known}"
            words = f"{BAD_EVENT.message}: {reason}"
            return accepted + self.fail(replace(BAD_EVENT, message=words, code=f"illegal_{known}"))
        return accepted

    def _accept(self, event: Event, accepted: list[Event]) -> None:
        """Add the events to send for one event of the upstream; usually the event itself.

        Raises IllegalMove if the event is illegal and cannot be repaired.
        """
        if self._repair is None:
            is_legal = event["type"] != "content_block_start" or not has_missing_fields(event)
            try:
                if is_legal:
                    self.validator.check(event)
            except IllegalMove:
                is_legal = False
            if is_legal:
                accepted.append(event)
                return
            # The upstream may send no ``message_start``.
            message: dict[str, Any] = {
                "id": self.context.message_id or message_id(""),
                "type": "message",
                "role": "assistant",
                "model": self.context.model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": Usage(input=self.context.input_estimate, output=0).to_wire(),
            }
            start = {"type": "message_start", "message": message}
            self._repair = StreamRepair(self.validator, start, self._add_note)
        for repaired in self._repair.feed(event):
            self.validator.check(repaired)
            accepted.append(repaired)

    def _is_spliced(self, message: dict[str, Any]) -> bool:
        """Return whether this is the start of a second generation in the stream of the first."""
        id_ = message.get("id")
        return bool(self.upstream_id and id_) and str(id_) != self.upstream_id

    def _completed(self, event: Event) -> list[Event]:
        """Return the event with what clients read and some servers leave out; usually itself.

        Anthropic's Python SDK needs the counts of ``usage`` in ``message_start`` and
        ``message_delta``. Claude Code takes a tool's input from deltas only.
        """
        match event["type"]:
            case "content_block_delta":
                if self._early_inputs and event["delta"].get("partial_json"):
                    self._early_inputs.pop(event["index"], None)
            case "content_block_start":
                block = event["content_block"]
                flushed = self._flushed_inputs()
                if _has_early_input(block):
                    self._early_inputs[event["index"]] = block["input"]
                    event = {**event, "content_block": {**block, "input": {}}}
                return [*flushed, event]
            case "message_start":
                message = event["message"]
                counts = {"input_tokens": self.context.input_estimate, "output_tokens": 0}
                usage, is_estimate = _with_counts(message.get("usage"), counts)
                if usage is not message.get("usage"):
                    event = {**event, "message": {**message, "usage": usage}}
                    self._note_counts(is_estimate)
            case "message_delta":
                counts = {"output_tokens": self._output_estimate}
                flushed = self._flushed_inputs()
                usage, is_estimate = _with_counts(event.get("usage"), counts)
                if usage is not event.get("usage"):
                    event = {**event, "usage": usage}
                    self._note_counts(is_estimate)
                reason = event["delta"].get("stop_reason")
                if type(reason) is str and (own := FOREIGN_REASONS.get(reason.lower())):
                    event = {**event, "delta": {**event["delta"], "stop_reason": own}}
                    self.is_changed = True
                    self._add_note(FOREIGN_REASON)
                return [*flushed, event]
            case "content_block_stop" | "message_stop":
                return [*self._flushed_inputs(), event]
        return [event]

    def _flushed_inputs(self) -> list[Event]:
        """Return the deltas of the inputs that came early and that no delta repeated."""
        if not self._early_inputs:
            return []
        events: list[Event] = []
        for index, value in self._early_inputs.items():
            delta = {"type": "input_json_delta", "partial_json": _input_json(value)}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
            self._characters += len(delta["partial_json"])
        self._early_inputs.clear()
        self._add_note(INPUT_IN_START)
        return events

    def _note_counts(self, is_estimate: bool) -> None:
        self.is_changed = True
        if is_estimate:
            self._add_note(ESTIMATED_USAGE)

    def _add_note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def feed_body(self, body: dict[str, Any]) -> list[Event]:
        """Process a complete, non-streamed message as the events of an equivalent stream."""
        if self.finished:
            return []
        try:
            if body["type"] == "message" and not isinstance(body.get("usage"), dict):
                body = {**body, "usage": {}}
            body = self._with_object_inputs(body)
            events = [body] if body["type"] == "error" else message_to_events(body)
        except MALFORMED_DATA_ERRORS as exc:
            self.fault = exc
            return self.fail(BAD_EVENT)
        return self.feed(*events)

    def _with_object_inputs(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a whole message in which the inputs of calls are objects; usually itself."""
        content = body.get("content") or ()
        wrong = [
            b for b in content if b["type"] in CALL_BLOCKS and type(b.get("input")) is not dict
        ]
        if not wrong:
            return body
        self.is_changed = True
        self._add_note(REPAIRED_INPUT)
        inputs = {id(b): parse_arguments(_input_json(b.get("input")))[0] for b in wrong}
        blocks = [{**b, "input": inputs[id(b)]} if id(b) in inputs else b for b in content]
        return {**body, "content": blocks}

    def end(self) -> list[Event]:
        """Handle the end of the upstream's bytes: without ``message_stop``, this is an error."""
        return self.fail(ENDED_EARLY)

    def fail(self, error: UpstreamError) -> list[Event]:
        body = {"type": error.error_type, "message": error.message}
        return self._end_with(error, {"type": "error", "error": body})

    def _end_with(self, error: UpstreamError, event: Event) -> list[Event]:
        if self.finished:
            return []
        self.error = error
        events: list[Event] = []
        if self._repair is not None:  # send the content that still waits, so that none is lost
            with contextlib.suppress(IllegalMove):
                for waiting in self._repair.end_blocks():
                    self.validator.check(waiting)
                    events.append(waiting)
        if self.validator.phase == INSIDE:
            events.append({"type": "content_block_stop", "index": self.validator.index})
        self.validator.phase = AFTER
        return [*events, event]

    def _read_end(self, reason: Any, usage: Any) -> None:
        """Read stop reason and usage, in the event that has the end or in the first one."""
        if isinstance(reason, str):
            self.stop_reason = FOREIGN_REASONS.get(reason.lower(), reason)
        if isinstance(usage, dict):
            latest, notes = usage_from_wire(usage)
            self._usage = latest if self._usage is NO_USAGE else merge_usage(self._usage, latest)
            self.notes += [note for note in notes if note not in self.notes]
