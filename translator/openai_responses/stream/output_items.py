"""Find the output item that an event belongs to.

The upstream's ``output_index`` identifies an item. ``item_id`` is used only if the index is missing
or is that of an item with another id: some proxies change ids between events, others send one id or
index 0 for all items. Without both, the event belongs to the last open item.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from translator.message_stream.message_composer import Block
from translator.openai_responses.types import OutputItem, UpstreamEvent
from translator.stream.text_buffer import TextBuffer

Channel = Literal["", "summary", "content"]

INITIAL_TEXT_KINDS: Final[Mapping[str, str]] = {
    "output_text": "text",
    "text": "text",
    "summary_text": "summary",
    "reasoning_text": "content",
}
"""Type of an added part -> the kind of text that the part may already contain."""


EMPTY_OBJECT: Final = "{}"
"""Some servers send these arguments when they add a call, before the real ones come in pieces."""


def _after_initial(initial: str, piece: str) -> str:
    """Return the initial text plus ``piece``, or only the piece if it repeats the initial text."""
    if initial.startswith(piece) or piece.startswith(initial):
        return piece
    return initial + piece


class PartState:
    """One text of an output item: a content part, or a part of a reasoning summary.

    Text that was sent to the client is stored only in its content blocks (usually one block).
    """

    __slots__ = (
        "annotations",
        "blocks",
        "buffer",
        "finished_part",
        "initial_text",
        "pending_annotations",
    )

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.initial_text = ""  # text of the event that added the part, until later text repeats it
        self.buffer: TextBuffer | None = None  # content that is not sent as a text block
        self.annotations: list[dict[str, Any]] = []  # all annotations received
        # Annotations not sent to the client yet.
        self.pending_annotations: list[dict[str, Any]] = []
        # The complete part; None if more text came after it.
        self.finished_part: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        if len(self.blocks) == 1:
            return self.blocks[0].buffer.getvalue()
        if self.buffer is not None:
            return self.buffer.getvalue()
        return "".join([block.text for block in self.blocks])

    def with_initial_text(self, piece: str) -> str:
        """Return the first piece of text, after the initial text unless the piece repeats it."""
        initial, self.initial_text = self.initial_text, ""
        return _after_initial(initial, piece)

    def append(self, piece: str) -> bool:
        """Store a piece that is not sent as a text block; return whether it is the first one."""
        first = self.buffer is None
        if self.buffer is None:
            self.buffer = TextBuffer()
        self.buffer.append(piece)
        return first


@dataclass(slots=True)
class ItemState:
    """The state of one output item."""

    key: int  # unique, chosen by the gateway
    type: str = ""  # empty until an event contains the type
    id: str = ""
    call_id: str = ""
    name: str = ""
    is_started: bool = False  # whether the block of this tool call was started
    is_done: bool = False  # whether output_item.done was received; later content is ignored
    channel: Channel = ""  # which of the two texts of a reasoning item is shown
    # Arguments of a call whose block has not started.
    pending_arguments: list[str] = field(default_factory=list)
    argument_characters: int = 0  # number of characters in a call's arguments
    # Arguments of the event that added the call, until later ones repeat them.
    initial_arguments: str = ""
    parts: dict[tuple[str, int], PartState] = field(default_factory=dict)

    def with_initial_arguments(self, piece: str) -> str:
        """Return a call's first arguments, after the initial ones unless the piece repeats them."""
        initial, self.initial_arguments = self.initial_arguments, ""
        return piece if initial == EMPTY_OBJECT else _after_initial(initial, piece)

    def get_part(self, kind: str, number: int) -> PartState:
        part = self.parts.get((kind, number))
        if part is None:
            part = self.parts[kind, number] = PartState()
        return part

    def part_numbers(self, kind: str, count: int) -> list[int]:
        """Return the numbers that ``count`` parts of a finished item had in the stream.

        vLLM counts a message's parts from 1 in the stream, but from 0 in the finished item.
        """
        for part_kind, number in self.parts:
            if number >= count and part_kind == kind:
                break
        else:
            return list(range(count))
        known_numbers = sorted([number for part_kind, number in self.parts if part_kind == kind])
        new_numbers = range(known_numbers[-1] + 1, known_numbers[-1] + 1 + count)
        return [*known_numbers, *new_numbers][:count]


class OutputItems:
    """Every output item of one response, in order of arrival."""

    def __init__(self) -> None:
        self._items: list[ItemState] = []
        self._by_index: dict[int, ItemState] = {}  # the latest item with each output_index
        self._by_item_id: dict[str, ItemState] = {}  # the latest item with each id

    def add_item(self, event: UpstreamEvent, body: OutputItem) -> ItemState:
        """Return the item of an ``output_item.added`` event; a new item if its index was used."""
        index, item_id = event.get("output_index"), body.get("id")
        item = self._by_index.get(index) if isinstance(index, int) else self._find_by_id(item_id)
        if item is not None and not _is_same(item, body):
            item = None
        return self._update_item(item or self._new_item(index), body)

    def item_for_event(self, index: Any, item_id: Any, kind: Any) -> ItemState:
        """Return the item of a delta or done event, which is for items of type ``kind``."""
        if type(index) is int and index in self._by_index:
            item = self._by_index[index]
            if item.id == item_id:
                return item  # this is the usual case
        item_by_id = self._by_item_id.get(item_id) if isinstance(item_id, str) else None
        if not isinstance(index, int):
            return item_by_id or self._latest_open_item(kind) or self._new_item(None)
        item_by_index = self._by_index.get(index)
        if item_by_id is not None and (item_by_index is None or item_by_index.id != item_id):
            return item_by_id
        return item_by_index or self._new_item(index)

    def finish_item(self, index: Any, body: OutputItem) -> ItemState:
        """Return the item of an ``output_item.done`` event."""
        return self._update_item(self.item_for_event(index, body.get("id"), body.get("type")), body)

    def matches_output(self, output: Any) -> bool:
        """Return whether all items are finished and ``output`` has just these, by number and type.

        In this case ``match_output`` would add no item.
        """
        if not isinstance(output, list) or len(output) != len(self._items):
            return False
        for item, body in zip(self._items, output, strict=True):
            if not item.is_done or not isinstance(body, dict) or body.get("type") != item.type:
                return False
        return True

    def match_output(self, output: list[OutputItem]) -> list[ItemState]:
        """Return the item of each entry of the final ``response.output``; a new item if unknown.

        Proxies change indices and ids of items: if neither matches, the k-th entry of a type is the
        k-th item of that type. A wrong order is better than content sent twice.
        """
        return [
            item if item.is_done else self._update_item(item, body)
            for item, body in zip(self._match_items(output), output, strict=True)
        ]

    def _match_items(self, output: list[OutputItem]) -> list[ItemState]:
        unmatched = list(self._items)
        matches: dict[int, ItemState] = {}
        for is_match in (_has_same_id, _has_same_index(self._by_index), _has_same_type):
            if not unmatched:
                break
            for number, body in enumerate(output):
                item = next((i for i in unmatched if is_match(i, number, body)), None)
                if number not in matches and item is not None:
                    matches[number] = item
                    unmatched.remove(item)
        return [matches.get(number) or self._new_item(None) for number in range(len(output))]

    def _find_by_id(self, item_id: Any) -> ItemState | None:
        return self._by_item_id.get(item_id) if isinstance(item_id, str) else None

    def _latest_open_item(self, kind: Any) -> ItemState | None:
        open_items = [i for i in self._items if not i.is_done and i.type in ("", kind)]
        return open_items[-1] if open_items else None

    def _new_item(self, index: Any) -> ItemState:
        item = ItemState(key=len(self._items))
        self._items.append(item)
        if isinstance(index, int):
            self._by_index[index] = item
        return item

    def _update_item(self, item: ItemState, body: OutputItem) -> ItemState:
        """Copy type, id, call id and name from an item object, unless they are already known."""
        if not item.type and type(kind := body.get("type")) is str:
            item.type = kind
        if not item.id and type(item_id := body.get("id")) is str:
            item.id = item_id
        if "call_id" in body and not item.call_id and isinstance(body["call_id"], str):
            item.call_id = body["call_id"]
        if "name" in body and not item.name and isinstance(body["name"], str):
            item.name = body["name"]
        if item.id:
            self._by_item_id[item.id] = item
        return item


def _is_same(item: ItemState, body: OutputItem) -> bool:
    """Return whether an ``output_item.added`` event repeats this item; else it adds a new one."""
    if item.id and item.id == body.get("id"):
        return True
    return not item.is_done and item.type in ("", body.get("type")) and not item.id


def _has_same_id(item: ItemState, number: int, body: OutputItem) -> bool:
    if item.type not in ("", body.get("type")):
        return False
    return bool(
        (item.id and item.id == body.get("id"))
        or (item.call_id and item.call_id == body.get("call_id"))
    )


def _has_same_index(at: dict[int, ItemState]) -> Callable[[ItemState, int, OutputItem], bool]:
    def is_match(item: ItemState, number: int, body: OutputItem) -> bool:
        return _has_same_type(item, number, body) and at.get(number) is item

    return is_match


def _has_same_type(item: ItemState, number: int, body: OutputItem) -> bool:
    return item.type in ("", body.get("type"))
