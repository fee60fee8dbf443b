"""Compose one Anthropic message from pieces that an upstream sends in its own order.

Upstreams interleave: they send two tool calls side by side, or text between the arguments of a
call. Anthropic's content blocks never overlap. So each piece names its block by a key from the
upstream's ids. One block is active, and its deltas are sent at once; the other blocks wait in a
queue until the active block closes.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from translator.anthropic.content_blocks import DIRECT
from translator.anthropic.stop_reason import TRUNCATED
from translator.anthropic.usage import NO_USAGE, Usage
from translator.dialect import AnswerForm, ResponseContext, UpstreamCall
from translator.errors import BadUpstream
from translator.notes import Note
from translator.stream.surrogates import replace_surrogates
from translator.stream.text_buffer import TextBuffer
from translator.stream.tool_arguments import (
    compact_json,
    parse_arguments,
    starts_as_object,
    without_nulls,
)

from .open_block import BROKEN_ARGUMENTS, Block, Delta, Key, StopScanner, finish_input, merge_deltas
from .stream_grammar import MessageWriter

ANSWER_FIELD: Final = "value"
"""The one property of the object around an answer that is no object."""
_ANSWER_START: Final = re.compile(rf'\s{{0,99}}\{{\s{{0,99}}"{ANSWER_FIELD}"\s{{0,99}}:\s{{0,99}}')


def restored_answer(text: str, form: AnswerForm) -> str:
    """Return the answer to a changed output schema in the form of the client's own schema.

    That is without its wrapper and without the nulls of absent properties.

    An answer in another form, such as a refusal in words, stays as it is; a truncated one loses
    only the start of the wrapper.
    """
    value, _ = parse_arguments(text) if text and not text.isspace() else (text, False)
    if not isinstance(value, dict):
        start = _ANSWER_START.match(text) if form.wrapped else None
        return text[start.end() :] if start is not None else text
    if "\\u" in text:
        value = replace_surrogates(value)  # an escape sequence may encode an unpaired surrogate
    restored = without_nulls(value, form.optional)
    if form.wrapped:
        return compact_json(restored[ANSWER_FIELD]) if restored.keys() == {ANSWER_FIELD} else text
    return text if restored == value else compact_json(restored)


WRAPPERS: Final = frozenset({"parallel", "multi_tool_use.parallel", "multi_tool_use_parallel"})
"""OpenAI's models were trained with this tool for parallel calls and sometimes call it although no
such tool is declared (vercel/ai#19067). No client has it, so its calls would be lost."""
NAMESPACE: Final = "functions."
"""The namespace of the client's tools in OpenAI's prompts."""
UNWRAPPED: Final = Note(
    "content", "repaired", "a call of the model's own wrapper is given as the calls inside"
)

MAX_INNER: Final = 64
"""Maximum calls inside; a model sends far fewer."""

InnerCall = tuple[str, dict[str, Any]]
"""The client's name of the tool, and the input."""


def is_wrapper(name: str) -> bool:
    """Return whether the name of a call is that of the wrapper."""
    return name.removeprefix(NAMESPACE) in WRAPPERS


def calls_inside(arguments: str, name_of: Callable[[str], str | None]) -> list[InnerCall] | None:
    """Return the calls inside a wrapper; None if one of them is none of a declared tool.

    ``name_of`` returns the client's name of the upstream's tool; None if no such tool is declared.
    """
    value, _ = parse_arguments(arguments)
    uses = value.get("tool_uses") if isinstance(value, dict) else None
    if not uses or not isinstance(uses, list) or len(uses) > MAX_INNER:
        return None
    calls: list[InnerCall] = []
    for use in uses:
        recipient = use.get("recipient_name") if isinstance(use, dict) else None
        inner = use.get("parameters", {}) if isinstance(use, dict) else None
        if isinstance(inner, str):
            inner, _ = parse_arguments(inner)
        name = name_of(recipient.removeprefix(NAMESPACE)) if isinstance(recipient, str) else None
        if name is None or not isinstance(inner, dict):
            return None
        calls.append((name, inner))
    return calls


def inner_id(wrapper_id: str, number: int) -> str:
    """Return the id of a call inside; the first one has the wrapper's, which may have a record."""
    if not number:
        return wrapper_id
    digest = hashlib.sha256(f"{wrapper_id}/{number}".encode(errors="surrogatepass"))
    return f"toolu_{digest.hexdigest()[:24]}"


EXCESS_CALL: Final = Note("content", "dropped", "a tool call beyond the one allowed")
REASONING_AS_TEXT: Final = Note(
    "content", "repaired", "the answer had reasoning alone; it is shown as text"
)
HIDDEN_REASONING: Final = "hidden reasoning"
"""The key of the block that shows it."""
MAX_CALLS: Final = 1_000
"""Maximum tool calls of a response; a model sends far fewer. Thousands of them in one read would
hold up other requests."""
MAX_UNDECIDED: Final = 1_000
"""Maximum characters of white space at the start of arguments that wait for the next one."""
CHANGED_ARGUMENTS: Final = Note(
    "content", "ignored", "final tool arguments differ from the streamed ones"
)


class MessageComposer:
    """Takes content pieces with block keys and writes Anthropic events in a valid order.

    The events written for one upstream event are in ``writer.events``. Once a stop sequence was
    found (``matched_stop``), the composer sends no more content; the caller then finishes with
    stop_reason ``stop_sequence``.
    """

    def __init__(
        self,
        context: ResponseContext,
        notes: list[Note] | None = None,
        call_records: dict[str, UpstreamCall] | None = None,
    ) -> None:
        self.context = context
        self.writer = MessageWriter()
        self.notes: list[Note] = [] if notes is None else notes
        self.matched_stop: str | None = None  # the stop sequence that was found in the text
        self.characters_after_stop = 0  # in the piece that completed the stop sequence
        self.tool_calls = 0  # number of tool_use blocks sent or queued
        # for later requests of the session
        self.call_records: dict[str, UpstreamCall] = {} if call_records is None else call_records
        self.started = False  # whether ``message_start`` was written
        self.message_id = ""
        self.finished = False  # whether the stream has ended: no event may follow
        self._output_closed = False  # whether no more content may be sent
        self._queue: deque[Block] = deque()  # open blocks, the active block first
        self._blocks: dict[Key, Block] = {}  # the latest block of each key, open or closed
        # Calls to drop, because the client wants only one (an empty set would take 216 bytes).
        self._dropped_calls: dict[Key, None] = {}
        self._hidden_reasoning = TextBuffer()  # that no block shows
        self._has_invalid_arguments = False  # and the profile treats them as an error

    @property
    def has_output(self) -> bool:
        """Whether any block was sent."""
        return self.writer.index >= 0

    @property
    def block_count(self) -> int:
        """The number of blocks sent or queued so far."""
        return len(self._blocks)

    def find_block(self, key: Key) -> Block | None:
        """Return the latest block with this key, open or closed."""
        return self._blocks.get(key)

    def start(self, *, message_id: str, model: str, usage: Usage = NO_USAGE) -> None:
        """Write ``message_start``, unless it was already written.

        ``usage`` is what the upstream has reported by now. In a stream, OpenAI reports it at the
        end, so ``message_start`` has an estimate of the input tokens.
        """
        if not (self.started or self.finished):
            counts = usage.to_wire() | {"output_tokens": 0}
            if usage.input is None:
                counts["input_tokens"] = self.context.input_estimate
            if "speed" in self.context.reported_fields and usage.service_tier is not None:
                counts["speed"] = "fast" if usage.service_tier == "priority" else "standard"
            self.message_id = message_id
            self.writer.start(message_id=message_id, model=model, usage=counts)
            self.started = True

    def add_note(self, note: Note) -> None:
        """Add a note, unless the same note was already added."""
        if note not in self.notes:
            self.notes.append(note)

    # Text

    def add_text(self, key: Key, piece: str) -> Block | None:
        """Send text; the first visible character opens its block, so no text block is blank.

        Returns the block, or None if no more content is sent.
        """
        if not piece or self._output_closed:
            return None
        if type(piece) is not str:
            raise _not_text_error(piece)
        block = self._blocks.get(key)
        if block is None or block.is_closed or block.type != "text":
            block = self._enqueue(key, {"type": "text", "text": "", "citations": None})
            if self.context.stop_sequences:
                block.scanner = StopScanner(self.context.stop_sequences)
                block.scanned_text = TextBuffer()
        block.buffer.append(piece)
        if self.context.answer is not None:
            return block  # sent at the end of the block
        if block.scanner is None:
            self._send_text(block, piece)
            return block
        piece, self.matched_stop = block.scanner.feed(piece)
        self._send_scanned(block, piece)
        if self.matched_stop is not None and block.scanned_text is not None:
            sent = len(block.scanned_text.getvalue()) + len(self.matched_stop)
            self.characters_after_stop = len(block.text) - sent
            # Blocks queued after the one with the stop sequence are dropped.
            self._output_closed = True
            while self._queue[-1] is not block:
                self._queue.pop().is_closed = True
        return block

    def add_citation(self, key: Key, citation: dict[str, Any]) -> None:
        """Add a citation to an open text block; drop the citation if that block is not open."""
        block = self._blocks.get(key)
        if block is not None and not block.is_closed and block.is_visible:
            block.citations.append(citation)
            self._send(block, {"type": "citations_delta", "citation": citation})

    # Reasoning

    def add_thinking(self, key: Key, piece: str) -> None:
        """Send reasoning according to the request's ``thinking`` setting.

        ``hidden`` sends none (see ``show_hidden_reasoning``); ``omitted`` stores its text only for
        the signature.
        """
        if not piece or self._output_closed:
            return
        if type(piece) is not str:
            raise _not_text_error(piece)
        if self.context.thinking == "hidden":
            self._hidden_reasoning.append(piece)
            return
        block = self._open_thinking_block(key)
        block.buffer.append(piece)
        if self.context.thinking != "omitted":
            self._send(block, {"type": "thinking_delta", "thinking": piece})

    def close_thinking(self, key: Key, signature: str) -> None:
        """Close a thinking block with its signature; without a block, open an empty one first.

        The signature of a closed block does not change.
        """
        block = self._blocks.get(key)
        if self.context.thinking == "hidden" or self._output_closed or (block and block.is_closed):
            return
        block = self._open_thinking_block(key)
        block.signature = signature
        self._close(block)

    def show_hidden_reasoning(self) -> None:
        """Send hidden reasoning as text if nothing else was sent: some servers answer in it.

        Without it, a client that asked for no thinking would get an empty message, which agents
        take for a finished turn (musistudio/claude-code-router#1596).
        """
        self.close_all_blocks()
        if self.has_output:
            return
        if reasoning := self._hidden_reasoning.getvalue().strip():
            self.add_note(REASONING_AS_TEXT)
            self.add_text(HIDDEN_REASONING, reasoning)
            self.close_block(HIDDEN_REASONING)

    def take_hidden_reasoning(self) -> str:
        """Return the reasoning that no block shows; the record of the next call contains it."""
        text = self._hidden_reasoning.getvalue()
        if text:
            self._hidden_reasoning = TextBuffer()
        return text

    # Tools

    def start_tool_call(self, key: Key, *, id: str, name: str) -> None:  # noqa: A002 - the API's name
        """Start a tool call: send its start and an empty first ``input_json_delta``.

        A repeated start with the same key and id has no effect.
        """
        if type(id) is not str or type(name) is not str:
            raise _not_text_error(name if type(id) is str else id)
        previous = self._blocks.get(key)
        is_repeated = previous is not None and previous.content_block.get("id") == id
        if self._output_closed or key in self._dropped_calls or is_repeated:
            return
        if self.context.single_tool_call and self.tool_calls:
            self._dropped_calls[key] = None
            self.add_note(EXCESS_CALL)
            return
        if self.tool_calls >= MAX_CALLS:
            raise BadUpstream("upstream sent too many tool calls")
        self.tool_calls += 1
        name = self.context.tool_names.get(name, name)
        if previous is not None:
            self._close(previous)
        block = self._enqueue(
            key, {"type": "tool_use", "id": id, "name": name, "input": {}, **DIRECT}
        )
        declared = self.context.declared_tools
        block.is_wrapper = bool(declared) and name not in declared and is_wrapper(name)
        block.delays_arguments = block.is_wrapper or bool(
            self.context.optional_properties.get(name)
        )
        if not block.is_wrapper:
            self._send(block, block.make_delta(""))

    def record_call(self, name: str, call: UpstreamCall, loss: Note) -> None:
        """Record what a call's id does not carry; without a record, add the note ``loss``."""
        if self.context.target.recorded_calls is None:
            self.add_note(loss)
        else:
            self.call_records[name] = call

    def add_arguments(self, key: Key, piece: str) -> None:
        """Add a piece of a call's arguments; ignore it if the call was closed or dropped.

        Arguments that do not start as a JSON object are buffered, to be repaired as a whole.
        """
        block = self._blocks.get(key)
        if block is None or block.is_closed or not piece:
            return
        if type(piece) is not str:
            raise _not_text_error(piece)
        piece = block.add_arguments(piece)
        if block.delays_arguments:
            return
        if block.sends_arguments:
            if piece and (sendable := block.without_comma(piece)):
                self._send(block, block.make_delta(sendable))
            return
        if not block.object_scanner.started:
            return
        text = block.text.lstrip()
        if len(text) < MAX_UNDECIDED and not text[1:].lstrip() and text[0] == "{":
            return  # the next character shows whether this is JSON
        block.sends_arguments = starts_as_object(text)
        block.delays_arguments = not block.sends_arguments
        if block.sends_arguments:
            self._send(block, block.make_delta(block.without_comma(text)))

    def finish_arguments(self, key: Key, text: str) -> None:
        """Set a call's complete arguments: send those not sent yet, repaired if none were sent."""
        block = self._blocks.get(key)
        if block is None or block.is_closed:
            return
        if type(text) is not str:
            raise _not_text_error(text)
        if not block.sends_arguments:
            if text:
                block.set_arguments(text)
            block.delays_arguments = True
            return
        streamed = block.buffer.tell() + block.leftovers.tell()
        if text and not (len(text) >= streamed and text.startswith(block.received)):
            self.add_note(CHANGED_ARGUMENTS)
            return
        self.add_arguments(key, text[streamed:])

    # Blocks without deltas

    def add_complete_block(self, key: Key, block: dict[str, Any]) -> None:
        """Send a block without deltas, such as ``redacted_thinking`` or a server tool's result."""
        if not self._output_closed:
            self._close(self._enqueue(key, block))

    def add_server_tool_use(self, key: Key, block: dict[str, Any]) -> None:
        """Send a complete ``server_tool_use`` block: the call of a tool that the upstream ran."""
        if self._output_closed:
            return
        arguments = compact_json(block["input"])
        queued = self._enqueue(key, block | {"input": {}})
        queued.buffer.append(arguments)
        queued.sends_arguments = True
        for piece in ("", arguments):
            self._send(queued, queued.make_delta(piece))
        self._close(queued)

    # Closing blocks and the message

    def close_block(self, key: Key) -> None:
        """Close a block that the upstream finished; closing it again has no effect."""
        block = self._blocks.get(key)
        if block is not None and not block.is_closed:
            self._close(block)

    def close_all_blocks(self) -> None:
        """Close all open blocks, in the order of their starts."""
        for block in self._queue:
            block.is_closed = True
        self._open_next_block()

    def finish(self, *, stop_reason: str, usage: dict[str, Any], **stop: Any) -> None:
        """Close every block and write ``message_delta`` and ``message_stop``.

        ``usage`` is ``Usage.to_delta()``; ``stop`` contains the other arguments of
        ``MessageWriter.finish``. Raises BadUpstream, after closing every block, for invalid tool
        arguments that the profile treats as an error.
        """
        if self.finished:
            return
        if self._queue:
            self.close_all_blocks()
        if self._has_invalid_arguments and stop_reason not in TRUNCATED:
            raise BadUpstream("invalid tool arguments from upstream")
        if "context_management" in self.context.reported_fields:
            stop["context_management"] = {"applied_edits": []}
        self.writer.finish(stop_reason=stop_reason, usage=usage, **stop)
        self.finished = self._output_closed = True

    def fail(self, *, error_type: str, message: str) -> None:
        """End the stream with an error; send queued blocks first, so that no content is lost."""
        if self.finished:
            return
        self.close_all_blocks()
        self.writer.fail(error_type=error_type, message=message)
        self.finished = self._output_closed = True

    def abort(self, *, error_type: str, message: str) -> None:
        """End the stream with an error after a bug of this package; drop queued blocks."""
        if not self.finished:
            self.writer.fail(error_type=error_type, message=message)
            self.finished = self._output_closed = True

    # The queue

    def _enqueue(self, key: Key, start: dict[str, Any]) -> Block:
        """Add a new block to the queue; first close complete blocks that their server left open.

        Text ends before a block of another type, and a call when its arguments are complete.
        """
        block = Block(key, start)
        if self._queue and block.type != "text" and self._queue[-1].type == "text":
            self._close(self._queue[-1])
        while self._queue and not self._queue[0].is_closed and self._queue[0].is_complete_call():
            self._close(self._queue[0])
        self._blocks[key] = block
        self._queue.append(block)
        return block

    def _open_thinking_block(self, key: Key) -> Block:
        block = self._blocks.get(key)
        if block is not None and not block.is_closed and block.type == "thinking":
            return block
        return self._enqueue(key, {"type": "thinking", "thinking": "", "signature": ""})

    def _send_scanned(self, block: Block, piece: str) -> None:
        """Send text in which the scanner found no stop sequence."""
        if piece and block.scanned_text is not None:
            block.scanned_text.append(piece)
            self._send_text(block, piece)

    def _send_text(self, block: Block, piece: str) -> None:
        """Send text; white space at the start waits for something visible.

        Anthropic refuses every request with a text block of white space alone in its history.
        """
        if not block.is_visible:
            if piece.isspace():
                block.held_space.append(piece)
                return
            block.is_visible = True
            if block.held_space:
                piece = "".join(block.held_space) + piece
                block.held_space = []
        self._send(block, {"type": "text_delta", "text": piece})

    def _send(self, block: Block, delta: Delta) -> None:
        if self._queue[0] is not block:
            block.queued_deltas.append(delta)
            return
        if not block.is_started:
            self._start_block(block)
        self.writer.write_delta(delta)

    def _start_block(self, block: Block) -> None:
        block.is_started = True
        self.writer.open_block(block.content_block)

    def _close(self, block: Block) -> None:
        if not block.is_closed:
            block.is_closed = True
            if self._queue[0] is block:
                self._open_next_block()

    def _open_next_block(self) -> None:
        """Send and finish the blocks at the front of the queue, up to the first open one."""
        while self._queue:
            block = self._queue[0]
            if block.queued_deltas:
                deltas, block.queued_deltas = block.queued_deltas, []
                for delta in merge_deltas(deltas):
                    self._send(block, delta)
            if not block.is_closed:
                break
            self._finish_block(block)
            self._queue.popleft()

    def _finish_block(self, block: Block) -> None:
        match block.type:
            case "text":
                if self.context.answer is not None:
                    block.scanned_text = TextBuffer()
                    self._send_scanned(block, restored_answer(block.text, self.context.answer))
                elif block.scanner is not None:
                    self._send_scanned(block, block.scanner.flush())
            case "thinking":
                # Exactly one ``signature_delta``, right before the block's stop, like Anthropic.
                if block.is_started or block.signature:  # otherwise the block is not sent
                    self._send(block, {"type": "signature_delta", "signature": block.signature})
            case "tool_use" if block.is_wrapper and self._unwrap(block):
                return
            case "tool_use" | "server_tool_use":
                optional = self.context.optional_properties.get(
                    block.content_block["name"], frozenset()
                )
                unsent, note = finish_input(block, optional)
                if note is not None:
                    self.add_note(note)
                if note is BROKEN_ARGUMENTS:
                    self._has_invalid_arguments = (
                        self.context.target.profile.broken_tool_json == "error"
                    )
                if unsent:
                    self._send(block, block.make_delta(unsent))
            case _:
                self._start_block(block)
        if block.is_started:
            shows_thinking = self.context.thinking != "omitted"
            self.writer.close_block(
                block.finished(shows_thinking=shows_thinking)
                if self.context.finished_blocks
                else None
            )
        if block.further_inputs:
            self._write_further_calls(block)

    def _write_further_calls(self, block: Block) -> None:
        """Write the calls that came in the arguments of a call, each as a block."""
        count = len(block.further_inputs)
        if self.context.single_tool_call or self.tool_calls + count > MAX_CALLS:
            self.add_note(EXCESS_CALL)
            return
        self.tool_calls += count
        for number, value in enumerate(block.further_inputs, 1):
            self._write_call(block, number, block.content_block["name"], value)

    def _write_call(self, block: Block, number: int, name: str, value: dict[str, Any]) -> None:
        """Write one of the calls that came in ``block`` as a block of its own."""
        inner_block = {
            "type": "tool_use",
            "id": inner_id(block.content_block["id"], number),
            "name": name,
            "input": {},
            **DIRECT,
        }
        self.writer.open_block(inner_block)
        for piece in ("", compact_json(value)):
            self.writer.write_delta(block.make_delta(piece))
        finished = {**inner_block, "input": value}
        self.writer.close_block(finished if self.context.finished_blocks else None)

    def _unwrap(self, block: Block) -> bool:
        """Write the calls inside a wrapper, each as a block; return False if it is no wrapper."""
        calls = calls_inside(block.received, self._declared_name)
        if calls is None:
            self._send(block, block.make_delta(""))
            return False
        self.add_note(UNWRAPPED)
        if self.context.single_tool_call and len(calls) > 1:
            self.add_note(EXCESS_CALL)
            del calls[1:]
        self.tool_calls += len(calls) - 1
        for number, (name, inner) in enumerate(calls):
            value = without_nulls(inner, self.context.optional_properties.get(name, frozenset()))
            self._write_call(block, number, name, value)
        return True

    def _declared_name(self, name: str) -> str | None:
        name = self.context.tool_names.get(name, name)
        return name if name in self.context.declared_tools else None


def _not_text_error(piece: Any) -> BadUpstream:
    """Return the error for a piece that is not a string, to raise before any state changes."""
    return BadUpstream(f"upstream sent {type(piece).__name__} where text belongs")
