"""Check that a stream is a valid Anthropic message stream.

The checker implements the numbered rules I1 to I14 of the protocol's description. It shares no code
with the product's stream writer, so that an error in one shows as a disagreement with the other.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DELTAS_BY_BLOCK_TYPE = {
    "text": {"text_delta", "citations_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
    "server_tool_use": {"input_json_delta"},
    "redacted_thinking": set(),
    "web_search_tool_result": set(),
    "web_fetch_tool_result": set(),
    "code_execution_tool_result": set(),
    "bash_code_execution_tool_result": set(),
    "text_editor_code_execution_tool_result": set(),
    "tool_search_tool_result": set(),
    "container_upload": set(),
    "mcp_tool_use": set(),
    "mcp_tool_result": set(),
}
"""I4 and I14: the block types of the stable API and the deltas that each allows. The MCP types
occur only in responses to clients of the beta that named MCP servers."""

STOP_REASONS = {
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
}
STOP_REASONS_WITH_TOOLS = STOP_REASONS - {"end_turn", "pause_turn"}
"""I11: after any other stop reason a client does not run the tool calls of the message."""

ERROR_TYPES = {
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "conflict_error",
    "api_error",
    "overloaded_error",
}
EXTRA_EVENT = "bridge.metadata"


class Frame(NamedTuple):
    """One SSE frame as a strict client parses it."""

    name: str
    body: dict[str, Any]


@dataclass
class GrammarChecker:
    """Check a stream event by event and collect its faults."""

    raw_tool_input: bool = False  # tool arguments that are not JSON may be passed through
    extras: bool = False  # the client requested ``bridge.metadata``
    faults: list[str] = field(default_factory=list)
    started: bool = False
    ended: str = ""  # "message_stop" or "error"
    delta_seen: dict[str, Any] | None = None  # the message_delta
    metadata_seen: bool = False
    open_block: dict[str, Any] | None = None
    blocks: list[dict[str, Any]] = field(default_factory=list)  # start blocks, in order
    block_deltas: list[dict[str, Any]] = field(default_factory=list)  # deltas of the open block
    inputs: list[str] = field(default_factory=list)  # joined partial_json of each tool block

    def check_event(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if self.ended:
            self._fault("I9", f"{kind} after {self.ended}")
        if kind in EVENT_CHECKS:
            EVENT_CHECKS[kind](self, event)
        elif not (kind == EXTRA_EVENT and self.extras):
            self._fault("I14", f"unknown event {kind!r}")
        else:
            self._metadata()

    def finish(self) -> list[str]:
        """Check the end of the stream and return all faults."""
        if not self.ended:
            self._fault("I9", "neither message_stop nor error before the end")
        if self.open_block is not None:
            self._fault("I3", "a block was never stopped")
        return self.faults

    def _fault(self, rule: str, what: str) -> None:
        self.faults.append(f"{rule}: {what}")

    def _ping(self, event: dict[str, Any]) -> None:
        """A ping may occur at any time."""

    def _message_start(self, event: dict[str, Any]) -> None:
        if self.started:
            self._fault("I1", "a second message_start")
        self.started = True
        message = event.get("message") or {}
        expected = {"type": "message", "role": "assistant", "content": []}
        for name, value in expected.items():
            if message.get(name) != value:
                self._fault("I1", f"message.{name} is {message.get(name)!r}")
        for name in ("stop_reason", "stop_sequence"):
            if message.get(name, "absent") is not None:
                self._fault("I1", f"message.{name} is not null")
        for name in ("id", "model"):
            if not isinstance(message.get(name), str):
                self._fault("I1", f"message.{name} is not a string")
        usage = message.get("usage")
        if not _counts(usage, "input_tokens", "output_tokens"):
            self._fault("I1", f"message.usage is {usage!r}")

    def _block_start(self, event: dict[str, Any]) -> None:
        self._in_message("content_block_start")
        if self.open_block is not None:
            self._fault("I3", "a block opens inside another")
        if event.get("index") != len(self.blocks):
            self._fault("I2", f"index {event.get('index')!r} where {len(self.blocks)} is expected")
        block = event.get("content_block") or {}
        self.open_block, self.block_deltas = block, []
        self.blocks.append(block)
        match block.get("type"):
            case "text" if block.get("text") != "":
                self._fault("I4", "a text block starts with text")
            case "thinking" if (block.get("thinking"), block.get("signature")) != ("", ""):
                self._fault("I7", f"a thinking block starts as {block!r}")
            case "tool_use" | "server_tool_use":
                if not (block.get("id") and block.get("name") and block.get("input") == {}):
                    self._fault("I5", f"a tool block starts as {block!r}")
            case kind if kind not in DELTAS_BY_BLOCK_TYPE:
                self._fault("I14", f"unknown block type {kind!r}")

    def _block_delta(self, event: dict[str, Any]) -> None:
        self._same_block(event)
        if self.open_block is None:
            return
        delta, kind = event.get("delta") or {}, self.open_block.get("type", "")
        if delta.get("type") not in DELTAS_BY_BLOCK_TYPE.get(kind, ()):
            self._fault("I4", f"{delta.get('type')!r} in a {kind!r} block")
        if kind == "tool_use" and not self.block_deltas and delta.get("partial_json") != "":
            self._fault("I5", "a tool block's first delta is not the empty one")
        if any(each.get("type") == "signature_delta" for each in self.block_deltas):
            self._fault("I7", "a delta after the signature")
        self.block_deltas.append(delta)

    def _block_stop(self, event: dict[str, Any]) -> None:
        self._same_block(event)
        if self.open_block is None:
            return
        kind = self.open_block.get("type")
        if kind == "text" and not any(
            d.get("text") or d.get("citation") for d in self.block_deltas
        ):
            self._fault("I12", "an empty text block")
        if kind == "thinking" and not any(
            d.get("type") == "signature_delta" for d in self.block_deltas
        ):
            self._fault("I7", "a thinking block without its signature_delta")
        if kind == "tool_use" and not self.block_deltas:
            self._fault("I5", "a tool block without its empty first delta")
        if kind in {"tool_use", "server_tool_use"}:
            arguments = "".join(str(d.get("partial_json")) for d in self.block_deltas)
            self.inputs.append(arguments)
        self.open_block = None

    def _message_delta(self, event: dict[str, Any]) -> None:
        self._in_message("message_delta")
        if self.open_block is not None:
            self._fault("I8", "message_delta inside a block")
        delta = event.get("delta") or {}
        reason = delta.get("stop_reason")
        if reason not in STOP_REASONS:
            self._fault("I8", f"stop_reason is {reason!r}")
        if not isinstance(delta.get("stop_sequence", 0), str | None):
            self._fault("I8", "stop_sequence is absent")
        if not _counts(event.get("usage"), "output_tokens"):
            self._fault("I8", f"usage is {event.get('usage')!r}")
        called = any(block.get("type") == "tool_use" for block in self.blocks)
        if (reason == "tool_use" and not called) or (
            called and reason not in STOP_REASONS_WITH_TOOLS
        ):
            self._fault("I11", f"stop_reason {reason!r}, tool called: {called}")
        if reason == "tool_use":
            self._whole_inputs()
        self.delta_seen = delta

    def _whole_inputs(self) -> None:
        """I6. Clients do not run a call that max_tokens or an error cut, so it may be incomplete."""
        for arguments in self.inputs:
            if arguments and not self.raw_tool_input and not isinstance(_parsed(arguments), dict):
                self._fault("I6", f"tool input is not a JSON object: {arguments[:80]!r}")

    def _error(self, event: dict[str, Any]) -> None:
        if self.open_block is not None:
            self._fault("I3", "an error inside a block")
        error = event.get("error") or {}
        if error.get("type") not in ERROR_TYPES or not isinstance(error.get("message"), str):
            self._fault("I9", f"error is {error!r}")
        self.ended = self.ended or "error"

    def _metadata(self) -> None:
        if self.metadata_seen or self.open_block is not None:
            self._fault("I8", f"{EXTRA_EVENT} twice or inside a block")
        self.metadata_seen = True

    def _message_stop(self, event: dict[str, Any]) -> None:
        if self.delta_seen is None:
            self._fault("I8", "message_stop without message_delta")
        if self.open_block is not None:
            self._fault("I3", "message_stop inside a block")
        self.ended = self.ended or "message_stop"

    def _in_message(self, what: str) -> None:
        if not self.started:
            self._fault("I1", f"{what} before message_start")
        if self.delta_seen is not None:
            self._fault("I8", f"{what} after message_delta")
        if self.metadata_seen:
            self._fault("I8", f"{what} after {EXTRA_EVENT}")

    def _same_block(self, event: dict[str, Any]) -> None:
        if self.open_block is None or event.get("index") != len(self.blocks) - 1:
            self._fault("I3", f"{event.get('type')} for block {event.get('index')!r}, not open")


EVENT_CHECKS: dict[str, Callable[[GrammarChecker, dict[str, Any]], None]] = {
    "content_block_delta": GrammarChecker._block_delta,
    "content_block_start": GrammarChecker._block_start,
    "content_block_stop": GrammarChecker._block_stop,
    "error": GrammarChecker._error,
    "message_delta": GrammarChecker._message_delta,
    "message_start": GrammarChecker._message_start,
    "message_stop": GrammarChecker._message_stop,
    "ping": GrammarChecker._ping,
}


def faults_of_events(
    events: Iterable[dict[str, Any]], *, raw_tool_input: bool = False, extras: bool = False
) -> list[str]:
    """Return the faults of these events as one complete stream."""
    judge = GrammarChecker(raw_tool_input=raw_tool_input, extras=extras)
    for event in events:
        judge.check_event(event)
    return judge.finish()


def read_frames(raw: bytes) -> tuple[list[Frame], list[str]]:
    """Split a stream into frames by rule I10 (stricter than SSE); return frames and faults."""
    frames, faults = [], []
    text = raw.decode()  # I10: UTF-8, or this raises
    *blocks, tail = text.split("\n\n")
    if tail:
        faults.append(f"I10: bytes after the last frame: {tail[:80]!r}")
    for block in blocks:
        lines = block.split("\n")
        if len(lines) != 2 or not lines[0].startswith("event: ") or lines[1][:6] != "data: ":
            faults.append(f"I10: not an event line and a data line: {block[:120]!r}")
            continue
        body = _parsed(lines[1][6:])
        name = lines[0][7:]
        if not isinstance(body, dict) or body.get("type") != name:
            faults.append(f"I10: event line {name!r} is not data.type")
            continue
        frames.append(Frame(name, body))
    return frames, faults


def faults_of_bytes(raw: bytes, *, raw_tool_input: bool = False, extras: bool = False) -> list[str]:
    """Return the faults of these bytes as one complete stream."""
    frames, faults = read_frames(raw)
    bodies = (frame.body for frame in frames)
    return faults + faults_of_events(bodies, raw_tool_input=raw_tool_input, extras=extras)


def faults_of_gaps(times_s: Sequence[float], *, longest_s: float = 15) -> list[str]:
    """I13: return the gaps between arrival times that exceed ``longest_s``."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    return [f"I13: {gap:.1f} s of silence" for gap in gaps if gap > longest_s]


def _counts(usage: object, *names: str) -> bool:
    return isinstance(usage, dict) and all(
        type(usage.get(name)) is int and usage[name] >= 0 for name in names
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
