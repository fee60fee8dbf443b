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
from translator.halves import sound
from translator.notes import Note
from translator.said import Said
from translator.stop_scanner import StopScanner

from .blocks import Block, Delta, Key, merged
from .stop_reason import CUT
from .writer import MessageWriter

__all__ = ["Block", "Key", "MessageComposer"]

REPAIRED: Final = Note("content", "repaired", "tool arguments were broken JSON")
BROKEN: Final = Note("content", "ignored", "bad_tool_json: tool arguments do not parse")
CHANGED: Final = Note("content", "ignored", "final tool arguments differ from the streamed ones")


class MessageComposer:
    """Takes keyed pieces, writes legal Anthropic events in order.

    What a piece amounts to is in ``writer.written``. Once a stop sequence was found
    (``matched_stop``) nothing more is said; the dialect then finishes with stop_reason
    ``stop_sequence``.
    """

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.writer = MessageWriter()
        self.notes: list[Note] = []
        self.matched_stop: str | None = None  # the stop sequence that was found in the text
        self.beyond = 0  # characters that came behind it, with its own piece
        self.tool_calls = 0  # tool_use blocks that reached the client or wait to
        self.begun = False  # ``message_start`` was written
        self.finished = False  # nothing may follow
        self._silent = False  # nothing more is said
        self._line: list[Block] = []  # the live block first
        self._blocks: dict[Key, Block] = {}  # by key, the latest; kept after its close
        # Calls that came although the client wanted only one. Empty, a set takes 216 bytes.
        self._surplus: dict[Key, None] = {}
        self._broken = False  # a call's arguments do not parse, and the profile calls that a fault

    @property
    def live(self) -> Block | None:
        return self._line[0] if self._line else None

    def block(self, key: Key) -> Block | None:
        """The latest block of this key, open or closed."""
        return self._blocks.get(key)

    def start(self, *, message_id: str, model: str) -> None:
        """Write ``message_start``; nothing when it was written before.

        OpenAI tells its usage at the end: until then the input is what we estimate.
        """
        if not (self.begun or self.finished):
            usage = {"input_tokens": self.context.input_estimate, "output_tokens": 0}
            more = {"diagnostics": None} if "diagnostics" in self.context.answered else {}
            self.writer.start(message_id=message_id, model=model, usage=usage, **more)
            self.begun = True

    # Text

    def text(self, key: Key, piece: str) -> Block | None:
        """Say text; its block opens with the first character that leaves (no empty blocks).

        The block that keeps it; None where nothing more is said.
        """
        if not piece or self._silent:
            return None
        if type(piece) is not str:
            raise _no_text(piece)
        block = self._blocks.get(key)
        if block is not None and block.flows:
            # Nearly every piece of nearly every answer: text that leaves as it came.
            block.pieces.append(piece)
            self.writer.delta({"type": "text_delta", "text": piece})
            return block
        if block is None or block.closed or block.type != "text":
            block = self._enqueue(key, {"type": "text", "text": ""})
            if self.context.stop_sequences:
                block.scanner = StopScanner(self.context.stop_sequences)
                block.scanned = Said()
        block.pieces.append(piece)
        if block.scanner is None:
            self._send(block, {"type": "text_delta", "text": piece})
            return block
        piece, self.matched_stop = block.scanner.feed(piece)
        self._let_go(block, piece)
        if self.matched_stop is not None and block.scanned is not None:
            told = len(block.scanned.getvalue()) + len(self.matched_stop)
            self.beyond = len(block.said) - told
            self._forget_after(block)
        return block

    def citation(self, key: Key, citation: dict[str, Any]) -> None:
        """Attach a citation to an open text block; nothing when the block is gone."""
        block = self._blocks.get(key)
        if block is not None and not block.closed and block.type == "text":
            block.citations.append(citation)
            self._send(block, {"type": "citations_delta", "citation": citation})

    # Reasoning

    def thinking(self, key: Key, piece: str) -> None:
        """Say reasoning, unless nobody asked for it (hidden) or only for its carrier (omitted)."""
        if self.context.thinking == "hidden" or not piece or self._silent:
            return
        if type(piece) is not str:
            raise _no_text(piece)
        block = self._opened_thinking(key)
        block.pieces.append(piece)
        if self.context.thinking != "omitted":
            self._send(block, {"type": "thinking_delta", "thinking": piece})

    def sign(self, key: Key, signature: str) -> None:
        """Close a thinking block with its signature; opens an empty one where nothing was said.

        A block that is closed keeps the signature that it has: twice is once.
        """
        block = self._blocks.get(key)
        if self.context.thinking == "hidden" or self._silent or (block and block.closed):
            return
        block = self._opened_thinking(key)
        block.signature = signature
        self._close(block)

    # Tools

    def tool(self, key: Key, *, id: str, name: str) -> None:  # noqa: A002 - the wire's word
        """Start a tool call; an empty ``input_json_delta`` follows its start at once.

        The same id under the same key again is the same call.
        """
        if type(id) is not str or type(name) is not str:
            raise _no_text(name if type(id) is str else id)
        known = self._blocks.get(key)
        if self._silent or key in self._surplus or (known and known.start.get("id") == id):
            return
        if self.context.single_tool_call and self.tool_calls:
            self._surplus[key] = None
            self.notes.append(Note("content", "dropped", "a tool call beyond the one allowed"))
            return
        self.tool_calls += 1
        name = self.context.tool_names.get(name, name)
        if known is not None:
            self._close(known)
        block = self._enqueue(key, {"type": "tool_use", "id": id, "name": name, "input": {}})
        block.held = bool(self.context.optional_properties.get(name))
        self._send(block, block.delta(""))

    def arguments(self, key: Key, piece: str) -> None:
        """Add a piece of a call's arguments; nothing when the call is closed or was dropped.

        What does not begin like an object is held back until it is complete and can be repaired.
        """
        block = self._blocks.get(key)
        if block is None or block.closed or not piece:
            return
        if type(piece) is not str:
            raise _no_text(piece)
        block.pieces.append(piece)
        if block.held:
            return
        if block.begun:
            self._send(block, block.delta(piece))
            return
        said = block.said.lstrip()
        if not said:
            return
        block.begun = said.startswith("{")
        block.held = not block.begun
        if block.begun:
            self._send(block, block.delta(said))

    def whole_arguments(self, key: Key, text: str) -> None:
        """Give a call all its arguments: the missing rest, or, if nothing came before, repaired."""
        block = self._blocks.get(key)
        if block is None or block.closed:
            return
        if type(text) is not str:
            raise _no_text(text)
        if not block.begun:
            if text:
                block.pieces = Said()
                block.pieces.append(text)
            block.held = True
            return
        said = block.said
        if text and not text.startswith(said):
            self._note(CHANGED)
            return
        self.arguments(key, text[len(said) :])

    # Blocks without deltas of their own

    def whole_block(self, key: Key, block: dict[str, Any]) -> None:
        """Send a block that has no deltas (a server tool's result, ``redacted_thinking``)."""
        if not self._silent:
            self._close(self._enqueue(key, block))

    def server_tool(self, key: Key, block: dict[str, Any]) -> None:
        """Tell a whole call of a tool that the upstream ran itself (``server_tool_use``)."""
        if self._silent:
            return
        said = compact_json(block["input"])
        queued = self._enqueue(key, block | {"input": {}})
        queued.pieces.append(said)
        for piece in ("", said):
            self._send(queued, queued.delta(piece))
        self._close(queued)

    # Endings

    def close(self, key: Key) -> None:
        """The upstream is done with this block; twice is once."""
        block = self._blocks.get(key)
        if block is not None and not block.closed:
            self._close(block)

    def close_all(self) -> None:
        """Close everything that is open, in the order in which it was first heard."""
        for block in self._line:
            block.end()
        self._advance()

    def finish(self, *, stop_reason: str, usage: dict[str, Any], **stop: Any) -> None:
        """Close every block and write ``message_delta`` and ``message_stop``.

        ``stop`` is as ``MessageWriter.finish`` takes it.
        Raises BadUpstream, with every block closed, where broken tool arguments are a fault.
        """
        if self.finished:
            return
        if self._line:
            self.close_all()
        if self._broken and stop_reason not in CUT:
            raise BadUpstream("invalid tool arguments from upstream")
        if self.context.answered:
            self._answer(usage, stop)
        self.writer.finish(stop_reason=stop_reason, usage=usage, **stop)
        self.finished = self._silent = True

    def _answer(self, usage: dict[str, Any], stop: dict[str, Any]) -> None:
        """Tell at the end what the client asked to hear of."""
        if "context_management" in self.context.answered:
            stop["context_management"] = {"applied_edits": []}
        if "speed" in self.context.answered and "service_tier" in usage:
            usage["speed"] = "fast" if usage["service_tier"] == "priority" else "standard"

    def fail(self, *, error_type: str, message: str) -> None:
        """End in an error; what waits in line leaves first, so that nothing said is lost."""
        if self.finished:
            return
        self.close_all()
        self.writer.fail(error_type=error_type, message=message)
        self.finished = self._silent = True

    # The line

    def _enqueue(self, key: Key, start: dict[str, Any]) -> Block:
        """Put a new block in line. Text that is open ends where anything but text begins."""
        block = Block(key, start)
        if self._line and block.type != "text" and self._line[-1].type == "text":
            self._close(self._line[-1])
        self._blocks[key] = block
        self._line.append(block)
        return block

    def _opened_thinking(self, key: Key) -> Block:
        block = self._blocks.get(key)
        if block is not None and not block.closed and block.type == "thinking":
            return block
        return self._enqueue(key, {"type": "thinking", "thinking": "", "signature": ""})

    def _forget_after(self, block: Block) -> None:
        """A stop sequence was found: whatever waits behind it was never said."""
        self._silent = True
        end = self._line.index(block) + 1
        for later in self._line[end:]:
            later.end()
        del self._line[end:]

    def _let_go(self, block: Block, piece: str) -> None:
        """Send what a scanner need not hold back any more."""
        if piece and block.scanned is not None:
            block.scanned.append(piece)
            self._send(block, {"type": "text_delta", "text": piece})

    def _send(self, block: Block, delta: Delta) -> None:
        if self._line[0] is not block:
            block.waiting.append(delta)
            return
        if not block.opened:
            self._open(block)
        self.writer.delta(delta)

    def _open(self, block: Block) -> None:
        block.opened = True
        block.flows = block.type == "text" and block.scanner is None and not block.closed
        self.writer.open_block(block.start)

    def _close(self, block: Block) -> None:
        if not block.closed:
            block.end()
            if self._line[0] is block:
                self._advance()

    def _advance(self) -> None:
        """Finish the live block if it is closed, then let the next one speak, and so on."""
        while self._line:
            block = self._line[0]
            if block.waiting:
                waiting, block.waiting = block.waiting, []
                for delta in merged(waiting):
                    self._send(block, delta)
            if not block.closed:
                break
            self._finish_block(block)
            del self._line[0]

    def _finish_block(self, block: Block) -> None:
        match block.type:
            case "text":
                if block.scanner is not None:
                    self._let_go(block, block.scanner.rest())
            case "thinking":
                self._sign(block)
            case "tool_use" | "server_tool_use":
                self._check_arguments(block)
            case _:
                self._open(block)
        if block.opened:
            shown = self._finished(block) if self.context.finished_blocks else None
            self.writer.close_block(shown)

    def _finished(self, block: Block) -> dict[str, Any]:
        """The block as a whole answer would have it."""
        finished = {**block.start}
        match block.type:
            case "text":
                finished["text"] = (block.scanned or block.pieces).getvalue()
                if block.citations:
                    finished["citations"] = block.citations
            case "thinking":
                shown = self.context.thinking != "omitted"
                finished["thinking"] = block.said if shown else ""
                finished["signature"] = block.signature
            case "tool_use" | "server_tool_use":
                finished["input"] = block.value
        return finished

    def _sign(self, block: Block) -> None:
        """Exactly one ``signature_delta``, right before the stop, as Anthropic's own streams do."""
        if block.opened or block.signature:  # else nothing to show and nothing to carry: no block
            self._send(block, {"type": "signature_delta", "signature": block.signature})

    def _check_arguments(self, block: Block) -> None:
        """Parse the arguments into the block's ``value``; send them if they were held."""
        said = block.said
        value, repaired = parse_arguments(said)
        parsed = isinstance(value, dict) and (block.held or not repaired)
        if not parsed:
            self._note(BROKEN)
            self._broken = self.context.target.profile.broken_tool_json == "error"
            value = said
        elif repaired:
            self._note(REPAIRED)
        if "\\u" in said:
            value = sound(value)  # an escape may be half a pair, which cannot be sent otherwise
        if block.held:
            optional = self.context.optional_properties.get(block.start["name"])
            if parsed and (repaired or optional):
                value = without_nulls(value, optional or frozenset())
                said = compact_json(value)
            elif not value:
                said = ""  # null, or nothing but blanks: no arguments
            if said:
                self._send(block, block.delta(said))
        block.value = value

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _no_text(piece: Any) -> BadUpstream:
    """Raised before anything is changed by it; dialects trust what they read."""
    return BadUpstream(f"upstream sent {type(piece).__name__} where text belongs")
