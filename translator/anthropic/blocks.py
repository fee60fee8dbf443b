"""One block of an answer, from its first piece to its stop, as the composer keeps it."""

from collections.abc import Hashable, Iterable
from typing import Any, Final

from translator.said import Said
from translator.stop_scanner import StopScanner

Key = Hashable
"""The upstream's own name for a block: item, part, kind."""

Delta = dict[str, Any]

DELTA_FIELDS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
    "server_tool_use": ("input_json_delta", "partial_json"),
    "mcp_tool_use": ("input_json_delta", "partial_json"),
}
"""By block type: the delta that carries its pieces, and the field that holds the piece."""

_FIELD_BY_DELTA: Final = dict(DELTA_FIELDS.values())


class Block:
    """``said`` is what the upstream said, whether or not the client sees all of it."""

    __slots__ = (
        "begun",
        "citations",
        "closed",
        "flows",
        "held",
        "key",
        "opened",
        "pieces",
        "scanned",
        "scanner",
        "signature",
        "start",
        "type",
        "value",
        "waiting",
    )

    def __init__(self, key: Key, start: dict[str, Any]) -> None:
        self.key = key
        self.start = start
        self.type: str = start["type"]
        self.waiting: list[Delta] = []  # to send once it is live
        self.pieces = Said()  # what the upstream said
        self.citations: list[dict[str, Any]] = []
        self.signature = ""
        self.scanner: StopScanner | None = None  # holds text back that may be a stop sequence
        self.scanned: Said | None = None  # what the scanner let go
        self.flows = False  # it is live text that leaves as it comes
        self.opened = False  # its start has left
        self.closed = False  # the upstream is done with it
        self.held = False  # arguments leave only at the close, after they were checked
        self.begun = False  # arguments have begun to leave: they start like an object
        self.value: Any = None  # of its arguments, once they are checked

    @property
    def said(self) -> str:
        return self.pieces.getvalue()

    def end(self) -> None:
        """The upstream is done with it."""
        self.closed = True
        self.flows = False

    def delta(self, piece: str) -> Delta:
        kind, name = DELTA_FIELDS[self.type]
        return {"type": kind, name: piece}


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Join neighbours of one kind: what waited in line leaves as one delta.

    The empty first delta of a tool call stays alone: clients wait for it.
    """
    joined: list[Delta] = []
    pieces: list[str] = []  # of the last delta in ``joined``
    for delta in deltas:
        kind = delta["type"]
        name = _FIELD_BY_DELTA.get(kind)
        if name is None or not delta[name] or not pieces or joined[-1]["type"] != kind:
            _complete(joined, pieces)
            joined.append(delta)
            pieces = [delta[name]] if name is not None and delta[name] else []
        else:
            pieces.append(delta[name])
    _complete(joined, pieces)
    return joined


def _complete(joined: list[Delta], pieces: list[str]) -> None:
    if len(pieces) > 1:
        kind = joined[-1]["type"]
        joined[-1] = {"type": kind, _FIELD_BY_DELTA[kind]: "".join(pieces)}
