"""Assign streamed pieces of tool calls to their calls; each call becomes one block.

The pieces of a call should have the same ``index``, and the first piece should have id and name.
But servers omit the index or always send 0, repeat or omit ids, split names and send arguments as
objects. The rules here find the call of each piece and lose no piece.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final

from translator.anthropic.stop_reason import is_at_limit
from translator.anthropic.token_estimate import CALL_CHARACTERS
from translator.anthropic.usage import Usage
from translator.dialect import UpstreamCall
from translator.message_stream.message_composer import MessageComposer
from translator.message_stream.open_block import Block
from translator.notes import Note
from translator.request.id_mapping import carried_fields, client_call_id, record_name
from translator.stream.tool_arguments import compact_json, is_unclosed

from .reasoning import HIDDEN_TEXT, REASONING_DETAILS, call_fields
from .text_blocks import TextBlocks

LATE_FIELDS: Final = Note(
    "content", "dropped", "a thought signature that arrived after the start of its call"
)
LONG_REASONING: Final = Note(
    "content", "dropped", "encrypted reasoning that is too long for the id of its call"
)
LATE_REASONING: Final = Note(
    "content", "dropped", "encrypted reasoning that arrived after the start of its call"
)
LONG_ID: Final = Note("content", "dropped", "a call id or thought signature that is too long")

NAMELESS_CALL: Final = Note("content", "dropped", "a tool call without a name")
REPEATED_CALL: Final = Note("content", "ignored", "a repeated call with the same id and arguments")

ARGUMENT_FIELDS: Final = ("parameters", "input")
"""Other names of the ``arguments`` field: in Llama's own format, and from proxies for Anthropic."""

TEXTS: Final = ("reasoning", "reasoning_content")
"""The fields in which a server takes back its reasoning as plain text."""

FUNCTION_CALL: Final = "function_call"
"""Used as the index of the single call in OpenAI's older ``function_call`` API."""

EMPTY_OBJECT: Final = "{}"
"""Bedrock sends these arguments at the start of a call; the real arguments follow in pieces.

https://github.com/openai/openai-agents-js/pull/712
"""


NO_BLOCK: Final = {"type": "tool_use"}


@dataclass(slots=True, eq=False)
class StreamedToolCall:
    """One tool call while it is streamed."""

    ordinal: int
    index: Any = None  # the index that the server sent; may be missing or wrong
    id: str = ""
    name: str = ""
    # Arguments received before the block starts.
    pending_arguments: Block = field(default_factory=lambda: Block(None, NO_BLOCK))
    is_started: bool = False
    # Fields that must be sent back with the call: Gemini's thought signature.
    fields: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False  # whether the arguments are complete, in a call that waits
    changes_id: bool = False  # the server sends a different id with each piece
    client_id: str = ""  # the id that the client has, once the call is started

    @property
    def key(self) -> tuple[str, int]:
        return ("call", self.ordinal)


class ToolCalls:
    """Assigns the pieces of tool calls to their calls.

    A call's block starts when its first arguments arrive, because its name is complete then.
    """

    def __init__(self, composer: MessageComposer, texts: TextBlocks) -> None:
        """Create an instance; a block of ``texts`` is closed before a tool call starts."""
        # Calls are in order of arrival. The list is cleared when all calls end.
        self.open_calls: list[StreamedToolCall] = []
        self.characters = 0  # number of characters in all calls, to estimate the output tokens
        self._composer = composer
        self._texts = texts
        profile = composer.context.target.profile
        self._cumulative = profile.cumulative_arguments
        # The id carries the signature, so the call must not start before it has arrived.
        self._waits_for_signature = profile.signed_calls
        # Calls that got a piece since the last flush. Only these may have to start or to close, so
        # that a flush does not read all calls again.
        self._touched: dict[StreamedToolCall, None] = {}
        self._by_id: dict[str, StreamedToolCall] = {}
        self._by_index: dict[Any, StreamedToolCall] = {}
        self._client_ids = set(composer.context.call_ids)  # call ids that the client already has
        self._closed_ids: dict[str, None] = {}  # upstream ids of finished calls
        # The arguments of the last call, when all calls have ended.
        self._last_arguments: str | None = None
        self._last_is_complete = False
        # Whether other content followed a call with incomplete arguments.
        self._has_incomplete_call = False

    def feed(self, piece: dict[str, Any], *, is_complete: bool) -> None:
        """Process one element of ``tool_calls``; with ``is_complete`` it has all arguments."""
        function = piece.get("function")
        # Some servers omit the wrapper object ``function``.
        function = function if isinstance(function, dict) else piece
        index, id_ = piece.get("index"), _string(piece.get("id"))
        name = _string(function.get("name"))
        arguments, was_object = function.get("arguments"), False
        if arguments is None:
            arguments = next((function[word] for word in ARGUMENT_FIELDS if word in function), None)
        if arguments is not None and not isinstance(arguments, str):
            arguments, was_object = compact_json(arguments), True
        may_repeat = bool(id_ and name) and not is_complete
        if may_repeat and arguments and self._is_repeated(id_, index, arguments):
            self._composer.add_note(REPEATED_CALL)
            return
        # Each element of a complete message is a separate call, whatever its id.
        call = None if is_complete else self._find_call(index, id_, name, arguments or "")
        if call is None:
            self.flush_before_text()
            call = StreamedToolCall(len(self.open_calls), index)
            self.open_calls.append(call)
        self._touched[call] = None
        if index is not None:
            call.index = index
            self._by_index[index] = call
        if id_:
            call.id = call.id or id_
            self._by_id[id_] = call
        if name and not call.is_started and name != call.name:
            call.name += name
        self._add_fields(call, piece)
        if arguments:
            self._add_arguments(call, arguments, is_complete=is_complete or was_object)

    def feed_function_call(self, function: Any, *, is_complete: bool) -> None:
        """Process the single call of OpenAI's older API, unless ``tool_calls`` contains it too."""
        if all(call.index == FUNCTION_CALL for call in self.open_calls):
            self.feed({"index": FUNCTION_CALL, "function": function}, is_complete=is_complete)

    def has_call(self, piece: Any) -> bool:
        """Return whether this complete call was already received.

        If ``piece`` has no id: return whether any call was received.
        """
        id_ = _string(piece.get("id")) if isinstance(piece, dict) else ""
        if not id_:
            return self._composer.tool_calls > 0
        return id_ in self._by_id or id_ in self._closed_ids

    def flush_before_text(self) -> None:
        """Start waiting calls and close calls with complete arguments, before other content."""
        touched = sorted(self._touched, key=lambda call: call.ordinal)
        self._touched.clear()
        for call in touched:
            self._start_call(call)
            block = self._composer.find_block(call.key)
            if block is None or block.is_closed:
                continue
            if block.has_complete_object:
                self._composer.close_block(call.key)
            else:
                self._has_incomplete_call = True

    def finish(self) -> None:
        """Start and close every call; drop calls without a name, at the end of the response."""
        self.flush_before_text()
        for call in self.open_calls:
            block = self._composer.find_block(call.key)
            self._last_arguments = block.text if block is not None else None
            self._last_is_complete = block is not None and block.has_complete_object
            if not call.is_started:
                self._composer.add_note(NAMELESS_CALL)
            self._composer.close_block(call.key)
        if self.open_calls and (details := self._texts.take_hidden_details()):
            self._record_late_reasoning(details)
        self.open_calls.clear()
        self._closed_ids |= dict.fromkeys(self._by_id)
        self._by_id.clear()
        self._by_index.clear()

    def is_cut(self, usage: Usage) -> bool:
        """Return whether the output limit ended the last call, whatever the finish reason is.

        If the output tokens were not counted, incomplete arguments show that the limit was reached.
        """
        if not self._last_arguments:
            return False
        if usage.output is None:
            return is_unclosed(self._last_arguments)
        at_limit = is_at_limit(usage, self._composer.context.max_tokens)
        return at_limit and not self._last_is_complete

    @property
    def arguments_complete(self) -> bool:
        """Return whether every open call has complete JSON arguments, or no arguments."""
        blocks = [self._composer.find_block(call.key) for call in self.open_calls]
        return all(
            b is None or b.is_closed or not b.buffer.tell() or b.has_complete_object for b in blocks
        )

    def _is_repeated(self, id_: str, index: Any, arguments: str) -> bool:
        """Return whether an earlier call has this id and exactly these complete arguments."""
        call = self._by_id.get(id_)
        if call is None or self._cumulative or index not in (None, call.index):
            return False
        block = self._block_of(call)
        is_as_long = len(arguments) == block.buffer.tell()
        return is_as_long and block.has_complete_object and arguments == block.text

    def _find_call(
        self, index: Any, id_: str, name: str, arguments: str
    ) -> StreamedToolCall | None:
        """Return the open call that a piece belongs to; None if the piece starts a new call."""
        call = self._by_id.get(id_) if id_ else None
        if call is not None and index in (None, call.index):
            return None if name and self._starts_second_object(call, arguments) else call
        if index is not None:
            call = self._by_index.get(index)
        else:
            call = self.open_calls[-1] if self.open_calls and not id_ else None
        if call is None:
            return None
        if id_ and call.id and id_ != call.id:
            # A new id means a new call, unless the server invents an id for each piece.
            return call if self._continues(call, name, arguments) else None
        return None if self._starts_new_call(call, index, name, arguments) else call

    def _continues(self, call: StreamedToolCall, name: str, arguments: str) -> bool:
        """Return whether a piece with a new id still continues the arguments of ``call``.

        If the client forced a tool, old vLLM versions also repeat the tool's name in each piece and
        send an empty piece at the end.
        """
        block = self._block_of(call)
        is_complete = block.has_complete_object
        if not name:
            return not is_complete
        if name != call.name or not block.buffer.tell() or (is_complete and not call.changes_id):
            return False
        call.changes_id = not (is_complete and arguments.lstrip().startswith("{"))
        return call.changes_id

    def _starts_new_call(
        self, call: StreamedToolCall, index: Any, name: str, arguments: str
    ) -> bool:
        """Return whether a piece with a name starts a new call, despite the index of ``call``.

        Before the first arguments, such a name may be the rest of a split name. After the first
        arguments, the same name is a repetition, unless a second JSON object starts.
        """
        if not name:
            return False
        if not (call.is_started or call.pending_arguments.buffer.tell()):
            return index is None and bool(call.name) and name != call.name
        if call.name and name != call.name:
            return True
        return self._starts_second_object(call, arguments)

    def _starts_second_object(self, call: StreamedToolCall, arguments: str) -> bool:
        """Return whether ``arguments`` start a second JSON object after a complete first one."""
        if not arguments.lstrip().startswith("{"):
            return False
        block = self._block_of(call)
        return block.has_complete_object and not (self._cumulative and _repeats(arguments, block))

    def _block_of(self, call: StreamedToolCall) -> Block:
        """Return the block with the call's arguments so far; an empty one if it has no name."""
        block = self._composer.find_block(call.key)
        if block is not None:
            return block
        return call.pending_arguments if call.name else Block(None, NO_BLOCK)

    def _add_arguments(self, call: StreamedToolCall, arguments: str, *, is_complete: bool) -> None:
        if not call.is_started:
            pending = call.pending_arguments
            if arguments.startswith("{") and pending.holds(EMPTY_OBJECT):
                pending.set_arguments("")
            is_first = not pending.buffer.tell()
            is_placeholder = arguments == EMPTY_OBJECT and is_first and not is_complete
            if not call.name or self._waits_for_signature or is_placeholder:
                pending.add_arguments(arguments)
                call.is_complete = is_complete
                return
            self._start_call(call)
        block = self._composer.find_block(call.key)
        if block is not None and self._cumulative and _repeats(arguments, block):
            arguments = arguments[block.buffer.tell() :]
        self.characters += len(arguments)
        if is_complete:
            self._composer.finish_arguments(call.key, arguments)
            self._composer.close_block(call.key)
            return
        self._composer.add_arguments(call.key, arguments)
        if self._has_incomplete_call and block is not None and block.has_complete_object:
            self._composer.close_block(call.key)

    def _start_call(self, call: StreamedToolCall) -> None:
        if call.is_started or not call.name:
            return
        call.is_started = True
        self.characters += len(call.name) + CALL_CHARACTERS
        call.client_id = self._client_id(call)
        self._client_ids.add(call.client_id)
        # A server may take back the reasoning before a call, if there is a session.
        target = self._composer.context.target
        text = self._composer.take_hidden_reasoning()
        if text and target.recorded_calls is not None and target.profile.reasoning_field in TEXTS:
            self._record(call, {HIDDEN_TEXT: text}, LATE_REASONING)
        self._texts.close_segment()
        self._composer.start_tool_call(call.key, id=call.client_id, name=call.name)
        if call.is_complete:
            arguments = call.pending_arguments.received
            self.characters += len(arguments)
            self._composer.finish_arguments(call.key, arguments)
            self._composer.close_block(call.key)
            return
        pending = call.pending_arguments.received
        self.characters += len(pending)
        self._composer.add_arguments(call.key, pending)

    def _client_id(self, call: StreamedToolCall) -> str:
        """Return the id for the client, which carries the call's fields and the hidden reasoning.

        What the id cannot carry is recorded. A missing id is derived from that of the message.
        """
        upstream_id, fields = call.id, call.fields
        if not upstream_id:
            seed = f"{self._composer.message_id}/{call.ordinal}".encode(errors="surrogatepass")
            upstream_id = f"toolu_{hashlib.sha256(seed).hexdigest()[:24]}"
        target = self._composer.context.target
        details = self._texts.take_hidden_details()
        if details:
            all_fields = {**fields, REASONING_DETAILS: details}
            id_, lost = client_call_id(upstream_id, self._client_ids, target, all_fields)
            if lost is None:
                return id_
        id_, lost = client_call_id(upstream_id, self._client_ids, target, fields)
        if lost is not None:
            self._composer.record_call(record_name(id_), lost, LONG_ID)
        if details:
            recorded = UpstreamCall(lost.id if lost else "", all_fields)
            self._composer.record_call(record_name(id_), recorded, LONG_REASONING)
        return id_

    def _add_fields(self, call: StreamedToolCall, piece: dict[str, Any]) -> None:
        """Add the fields of a piece that must go back with the call: to its id or to the record."""
        fields = call_fields(piece)
        if not fields or fields == call.fields:
            return
        if call.is_started:
            self._record(call, fields, LATE_FIELDS)
        else:
            call.fields |= fields

    def _record_late_reasoning(self, details: list[dict[str, Any]]) -> None:
        """Record reasoning after the start of the last call, with the reasoning before it."""
        call = next((call for call in reversed(self.open_calls) if call.is_started), None)
        if call is None:
            self._composer.add_note(LATE_REASONING)
            return
        earlier = self._unseen_fields(call).get(REASONING_DETAILS, [])
        self._record(call, {REASONING_DETAILS: earlier + details}, LATE_REASONING)

    def _record(self, call: StreamedToolCall, fields: dict[str, Any], loss: Note) -> None:
        """Record fields that arrived after the start of the call, with those of its id."""
        name = record_name(call.client_id)
        recorded = self._composer.call_records.get(name)
        all_fields = {**self._unseen_fields(call), **fields}
        self._composer.record_call(
            name, UpstreamCall(recorded.id if recorded else "", all_fields), loss
        )

    def _unseen_fields(self, call: StreamedToolCall) -> dict[str, Any]:
        """Return the fields of a started call that its id carries or that are recorded for it."""
        recorded = self._composer.call_records.get(record_name(call.client_id))
        if recorded is not None:
            return recorded.fields
        return carried_fields(call.client_id, self._composer.context.target)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _repeats(arguments: str, block: Block) -> bool:
    """Return whether ``arguments`` start with all arguments so far, and not only a part of them."""
    so_far = block.buffer.tell()
    return 0 < so_far <= len(arguments) and arguments.startswith(block.text)
