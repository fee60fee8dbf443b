"""Composes one Anthropic message from pieces that an upstream speaks in its own order.

Upstreams interleave: two tool calls side by side, text between the arguments of a call. Anthropic
blocks never overlap. So each piece names its block by the upstream's own key; one block is live
and its deltas leave at once, the others wait in line, complete and in order, until it closes.
Interleave never, drop never.
"""

from typing import Any, Final

from translator.arguments import compact_json, parse_arguments, without_nulls
from translator.dialect import AnswerContext
from translator.errors import BadUpstream
from translator.notes import Note
from translator.said import Said
from translator.stop_scanner import StopScanner

from .blocks import Block, Delta, Key, merged
from .stop_reason import CUT
from .types import Event
from .writer import MessageWriter, Phase

__all__ = ["Block", "Key", "MessageComposer"]

REPAIRED: Final = Note("content", "repaired", "tool arguments were broken JSON")
BROKEN: Final = Note("content", "ignored", "bad_tool_json: tool arguments do not parse")
CHANGED: Final = Note("content", "ignored", "final tool arguments differ from the streamed ones")


class MessageComposer:
    """Takes keyed pieces, returns legal Anthropic events in order.

    Once a stop sequence was found (``matched_stop``) nothing more is said; the dialect then
    finishes with stop_reason ``stop_sequence``.
    """

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.writer = MessageWriter()
        self.notes: list[Note] = []
        self.matched_stop: str | None = None  # the stop sequence that was found in the text
        self.tool_calls = 0  # tool_use blocks that reached the client or wait to
        self._line: list[Block] = []  # the live block first
        self._blocks: dict[Key, Block] = {}  # by key, the latest; kept after its close
        self._surplus: set[Key] = set()  # calls that came although the client wanted only one
        self._broken = False  # a call's arguments do not parse, and the profile calls that a fault

    @property
    def finished(self) -> bool:
        return self.writer.phase is Phase.AFTER

    @property
    def live(self) -> Block | None:
        return self._line[0] if self._line else None

    def block(self, key: Key) -> Block | None:
        """The latest block of this key, open or closed."""
        return self._blocks.get(key)

    def start(self, *, message_id: str, model: str, usage: dict[str, Any]) -> list[Event]:
        """Write ``message_start``; nothing when it was written before."""
        if self.writer.phase is not Phase.BEFORE:
            return []
        return self.writer.start(message_id=message_id, model=model, usage=usage)

    # Text

    def text(self, key: Key, piece: str) -> list[Event]:
        """Say text; its block opens with the first character that leaves (no empty blocks)."""
        if not piece or self._silent:
            return []
        _check_text(piece)
        block = self._blocks.get(key)
        if block is not None and block.flows:
            # Nearly every piece of nearly every answer: text that leaves as it came.
            block.pieces.append(piece)
            return self.writer.delta({"type": "text_delta", "text": piece})
        events: list[Event] = []
        if block is None or block.closed or block.type != "text":
            events, block = self._enqueue(key, {"type": "text", "text": ""})
            if self.context.stop_sequences:
                block.scanner = StopScanner(self.context.stop_sequences)
        block.pieces.append(piece)
        if block.scanner is None:
            return events + self._send(block, block.delta(piece))
        piece, self.matched_stop = block.scanner.feed(piece)
        events += self._let_go(block, piece)
        if self.matched_stop is not None:
            self._forget_after(block)
        return events

    def citation(self, key: Key, citation: dict[str, Any]) -> list[Event]:
        """Attach a citation to an open text block; nothing when the block is gone."""
        block = self._blocks.get(key)
        if block is None or block.closed or block.type != "text":
            return []
        block.citations.append(citation)
        return self._send(block, {"type": "citations_delta", "citation": citation})

    # Reasoning

    def thinking(self, key: Key, piece: str) -> list[Event]:
        """Say reasoning, unless nobody asked for it (hidden) or only for its carrier (omitted)."""
        if self.context.thinking == "hidden" or not piece or self._silent:
            return []
        _check_text(piece)
        events, block = self._opened_thinking(key)
        block.pieces.append(piece)
        if self.context.thinking == "omitted":
            return events
        return events + self._send(block, block.delta(piece))

    def sign(self, key: Key, signature: str) -> list[Event]:
        """Close a thinking block with its signature; opens an empty one where nothing was said.

        A block that is closed keeps the signature that it has: twice is once.
        """
        block = self._blocks.get(key)
        if self.context.thinking == "hidden" or self._silent or (block and block.closed):
            return []
        events, block = self._opened_thinking(key)
        block.signature = signature
        return events + self._close(block)

    # Tools

    def tool(self, key: Key, *, id: str, name: str) -> list[Event]:  # noqa: A002 - the wire's word
        """Start a tool call; an empty ``input_json_delta`` follows its start at once.

        The same id under the same key again is the same call.
        """
        _check_text(id)
        _check_text(name)
        known = self._blocks.get(key)
        if self._silent or key in self._surplus or (known and known.start.get("id") == id):
            return []
        if self.context.single_tool_call and self.tool_calls:
            self._surplus.add(key)
            self.notes.append(Note("content", "dropped", "a tool call beyond the one allowed"))
            return []
        self.tool_calls += 1
        name = self.context.tool_names.get(name, name)
        start = {"type": "tool_use", "id": id, "name": name, "input": {}}
        events = [] if known is None else self._close(known)
        opening, block = self._enqueue(key, start)
        block.held = bool(self.context.optional_properties.get(name))
        return events + opening + self._send(block, block.delta(""))

    def arguments(self, key: Key, piece: str) -> list[Event]:
        """Add a piece of a call's arguments; nothing when the call is closed or was dropped.

        What does not begin like an object is held back until it is complete and can be repaired.
        """
        block = self._blocks.get(key)
        if block is None or block.closed or not piece:
            return []
        _check_text(piece)
        block.pieces.append(piece)
        if block.held:
            return []
        if block.begun:
            return self._send(block, block.delta(piece))
        said = block.said.lstrip()
        if not said:
            return []
        block.begun = said.startswith("{")
        block.held = not block.begun
        return self._send(block, block.delta(said)) if block.begun else []

    def whole_arguments(self, key: Key, text: str) -> list[Event]:
        """Give a call all its arguments: the missing rest, or, if nothing came before, repaired."""
        block = self._blocks.get(key)
        if block is None or block.closed:
            return []
        _check_text(text)
        if not block.begun:
            if text:
                block.pieces = Said()
                block.pieces.append(text)
            block.held = True
            return []
        said = block.said
        if text and not text.startswith(said):
            self._note(CHANGED)
            return []
        return self.arguments(key, text[len(said) :])

    # Blocks without deltas of their own

    def whole_block(self, key: Key, block: dict[str, Any]) -> list[Event]:
        """Send a block that has no deltas (a server tool's result, ``redacted_thinking``)."""
        if self._silent:
            return []
        events, queued = self._enqueue(key, block)
        return events + self._close(queued)

    def server_tool(self, key: Key, block: dict[str, Any]) -> list[Event]:
        """Tell a whole call of a tool that the upstream ran itself (``server_tool_use``)."""
        if self._silent:
            return []
        said = compact_json(block["input"])
        events, queued = self._enqueue(key, block | {"input": {}})
        queued.pieces.append(said)
        for piece in ("", said):
            events += self._send(queued, queued.delta(piece))
        return events + self._close(queued)

    # Endings

    def close(self, key: Key) -> list[Event]:
        """The upstream is done with this block; twice is once."""
        block = self._blocks.get(key)
        return [] if block is None else self._close(block)

    def close_all(self) -> list[Event]:
        """Close everything that is open, in the order in which it was first heard."""
        for block in self._line:
            block.end()
        return self._advance()

    def finish(
        self,
        *,
        stop_reason: str,
        usage: dict[str, Any],
        stop_sequence: str | None = None,
        stop_details: dict[str, Any] | None = None,
    ) -> list[Event]:
        """Close every block and write ``message_delta`` and ``message_stop``.

        Raises BadUpstream, with every block closed, where broken tool arguments are a fault.
        """
        if self.finished:
            return []
        events = self.close_all() if self._line else []
        if self._broken and stop_reason not in CUT:
            raise BadUpstream("invalid tool arguments from upstream")
        ending = self.writer.finish(
            stop_reason=stop_reason,
            usage=usage,
            stop_sequence=stop_sequence,
            stop_details=stop_details,
        )
        if self.context.tells_edits:
            ending[0]["context_management"] = {"applied_edits": []}
        return events + ending

    def fail(self, *, error_type: str, message: str) -> list[Event]:
        """End in an error; what waits in line leaves first, so that nothing said is lost."""
        if self.finished:
            return []
        return self.close_all() + self.writer.fail(error_type=error_type, message=message)

    # The line

    @property
    def _silent(self) -> bool:
        return self.matched_stop is not None or self.writer.phase is Phase.AFTER

    def _enqueue(self, key: Key, start: dict[str, Any]) -> tuple[list[Event], Block]:
        """Put a new block in line. Text that is open ends where anything but text begins."""
        last = self._line[-1] if self._line else None
        ends = last is not None and last.type == "text" and start["type"] != "text"
        events = self._close(last) if last is not None and ends else []
        block = Block(key, start)
        self._blocks[key] = block
        self._line.append(block)
        return events, block

    def _opened_thinking(self, key: Key) -> tuple[list[Event], Block]:
        block = self._blocks.get(key)
        if block is not None and not block.closed and block.type == "thinking":
            return [], block
        return self._enqueue(key, {"type": "thinking", "thinking": "", "signature": ""})

    def _forget_after(self, block: Block) -> None:
        """A stop sequence was found: whatever waits behind it was never said."""
        end = self._line.index(block) + 1
        for later in self._line[end:]:
            later.end()
        del self._line[end:]

    def _let_go(self, block: Block, piece: str) -> list[Event]:
        """Send what a scanner need not hold back any more."""
        if not piece:
            return []
        block.scanned.append(piece)
        return self._send(block, block.delta(piece))

    def _send(self, block: Block, delta: Delta) -> list[Event]:
        if self._line[0] is not block:
            block.waiting.append(delta)
            return []
        if block.opened:
            return self.writer.delta(delta)
        return self._open(block) + self.writer.delta(delta)

    def _open(self, block: Block) -> list[Event]:
        block.opened = True
        block.flows = block.type == "text" and block.scanner is None and not block.closed
        return self.writer.open_block(block.start)

    def _close(self, block: Block) -> list[Event]:
        if block.closed:
            return []
        block.end()
        return self._advance() if self._line[0] is block else []

    def _advance(self) -> list[Event]:
        """Finish the live block if it is closed, then let the next one speak, and so on."""
        events: list[Event] = []
        while self._line:
            block = self._line[0]
            if block.waiting:
                waiting, block.waiting = block.waiting, []
                for delta in merged(waiting):
                    events += self._send(block, delta)
            if not block.closed:
                break
            events += self._finish_block(block)
            del self._line[0]
        return events

    def _finish_block(self, block: Block) -> list[Event]:
        finished = {**block.start}
        match finished["type"]:
            case "text":
                events = self._rest_of_text(block, finished)
            case "thinking":
                events = self._signature(block, finished)
            case "tool_use" | "server_tool_use":
                events = self._checked_arguments(block, finished)
            case _:
                events = self._open(block)
        if not block.opened:
            return []
        shown = finished if self.context.finished_blocks else None
        return events + self.writer.close_block(shown)

    def _rest_of_text(self, block: Block, finished: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        finished["text"] = block.said
        if block.scanner is not None:
            events = self._let_go(block, block.scanner.rest())
            finished["text"] = block.scanned.getvalue()
        if block.citations:
            finished["citations"] = block.citations
        return events

    def _signature(self, block: Block, finished: dict[str, Any]) -> list[Event]:
        """Exactly one ``signature_delta``, right before the stop, as Anthropic's own streams do."""
        if not block.opened and not block.signature:
            return []  # nothing to show and nothing to carry: no block
        thought = "" if self.context.thinking == "omitted" else block.said
        finished |= {"thinking": thought, "signature": block.signature}
        return self._send(block, {"type": "signature_delta", "signature": block.signature})

    def _checked_arguments(self, block: Block, finished: dict[str, Any]) -> list[Event]:
        """Put the parsed input into ``finished``; send the arguments if they were held."""
        said = block.said
        value, repaired = parse_arguments(said)
        parsed = isinstance(value, dict) and (block.held or not repaired)
        if not parsed:
            self._note(BROKEN)
            self._broken = self.context.target.profile.broken_tool_json == "error"
            value = said
        elif repaired:
            self._note(REPAIRED)
        if not block.held:
            finished["input"] = value
            return []
        optional = self.context.optional_properties.get(block.start["name"])
        if parsed and (repaired or optional):
            value = without_nulls(value, optional or frozenset())
            said = compact_json(value)
        elif not value:
            said = ""  # null, or nothing but blanks: no arguments
        finished["input"] = value
        return self._send(block, block.delta(said)) if said else []

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _check_text(piece: Any) -> None:
    """Refuse what is no text before anything is changed by it; dialects trust what they read."""
    if not isinstance(piece, str):
        raise BadUpstream(f"upstream sent {type(piece).__name__} where text belongs")
