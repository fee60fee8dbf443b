"""Find the output item that an event belongs to.

The upstream's ``output_index`` identifies an item. ``item_id`` is used only if the index is missing
or is that of an item with another id: some proxies change ids between events, others send one id or
index 0 for all items. Without both, the event belongs to the last open item. A ``call_id`` decides
before both, and an item of another type is never the item of an event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from translator.errors import BadUpstream
from translator.message_stream.open_block import Block
from translator.stream.text_buffer import TextBuffer

from .types import OutputItem, UpstreamEvent

Channel = Literal["", "summary", "content"]

INITIAL_TEXT_KINDS: Final[Mapping[str, str]] = {
    "output_text": "text",
    "text": "text",
    "summary_text": "summary",
    "reasoning_text": "content",
}
"""Type of an added part -> the kind of text that the part may already contain."""


FAMILIES: Final[Mapping[str, str]] = {
    "custom_tool_call": "call",
    "function_call": "call",
    "message": "message",
    "reasoning": "reasoning",
}
"""Item type -> family. Items of different families cannot be the same item, whatever their ids."""

MAX_ITEMS: Final = 1000
MAX_PARTS: Final = 1000
"""Maximum output items of a response, and parts of an item; a model sends far fewer. Finding the
item of an event may look at all items."""

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
        self.annotations: set[str] = set()  # all annotations received, as JSON
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

    @property
    def length(self) -> int:
        """The length of ``text``."""
        if self.buffer is not None and len(self.blocks) != 1:
            return self.buffer.tell()
        return sum(block.buffer.tell() for block in self.blocks)

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

    key: int  # the gateway chose it; it is unique
    type: str = ""  # the type is empty until an event contains it
    id: str = ""
    call_id: str = ""
    name: str = ""
    is_started: bool = False  # whether the block of this tool call was started
    is_done: bool = False  # output_item.done was received; later content is ignored
    # Whether other content is complete when the content of this item starts, because the upstream
    # sends one item after the other: it omits ``output_index`` or reuses an index.
    ends_others: bool = False
    id_is_stable: bool = False  # whether several events named the item by the same id
    has_whole_text: bool = False  # whether the part that came last was finished
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
            if len(self.parts) == MAX_PARTS:
                raise BadUpstream("upstream sent an output item of too many parts")
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
        self._by_call_id: dict[str, ItemState] = {}
        self._is_ambiguous = False  # whether indices are missing or were used again

    def add_item(self, event: UpstreamEvent, body: OutputItem) -> ItemState:
        """Return the item of an ``output_item.added`` event; a new item if its index was used."""
        index, item_id = event.get("output_index"), body.get("id")
        item = self._by_index.get(index) if isinstance(index, int) else self._find(item_id)
        if item is not None and not _is_same(item, body):
            item = None
        return self._update_item(item or self._new_item(index), body)

    def item_for_event(
        self, index: Any, item_id: Any, kind: Any, *, call_id: Any = None, is_delta: bool = False
    ) -> ItemState:
        """Return the item of a delta or done event, which is for items of type ``kind``.

        ``is_delta``: the event has new content, which no finished item accepts.
        """
        if isinstance(call_id, str) and call_id in self._by_call_id:
            return self._by_call_id[call_id]
        if type(index) is int and index in self._by_index:
            item = self._by_index[index]
            if item.id == item_id and item.type == kind:
                return item  # this is the usual case
        item_by_id = _if_suitable(self._find(item_id), kind)
        if item_by_id is not None:
            item_by_id.id_is_stable = True
        if not isinstance(index, int):
            return item_by_id or self._item_without_index(item_id, kind)
        item_by_index = _if_suitable(self._by_index.get(index), kind)
        if index not in self._by_index and is_delta and item_by_id is not None:
            item_by_id = None if item_by_id.is_done else item_by_id
        if item_by_id is not None and (item_by_index is None or item_by_index.id != item_id):
            return item_by_id
        if item_by_index is None:
            return self._new_item(index, item_id, kind)
        # Content with the index of a finished item, but another id, belongs to another item.
        has_other_id = isinstance(item_id, str) and bool(item_id) and item_by_index.id != item_id
        if is_delta and item_by_index.is_done and has_other_id:
            return self._new_item(index, item_id, kind)
        return item_by_index

    def finish_item(self, index: Any, body: OutputItem) -> ItemState:
        """Return the item of an ``output_item.done`` event."""
        kind, call_id = body.get("type"), body.get("call_id")
        if type(index) is int and index not in self._by_index:
            call_id = None  # another call, even if the server gave both the same call id
        item = self._open_item_with_text(body) if self._is_ambiguous else None
        if item is None:
            item = self.item_for_event(index, body.get("id"), kind, call_id=call_id)
        if item.is_done and isinstance(call_id, str) and call_id != item.call_id:
            item = self._new_item(index)
        return self._update_item(item, body)

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

    @property
    def has_any(self) -> bool:
        return bool(self._items)

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

        def has_same_index(item: ItemState, number: int, body: OutputItem) -> bool:
            return _has_same_type(item, number, body) and self._by_index.get(number) is item

        is_second_best = _has_same_text if self._is_ambiguous else has_same_index
        for is_match in (_has_same_id, is_second_best, _has_same_type):
            if not unmatched:
                break
            for number, body in enumerate(output):
                item = next((i for i in unmatched if is_match(i, number, body)), None)
                if number not in matches and item is not None:
                    matches[number] = item
                    unmatched.remove(item)
        return [matches.get(number) or self._new_item(None) for number in range(len(output))]

    def _find(self, item_id: Any) -> ItemState | None:
        """Return the item with this id. Some servers send a call's ``call_id`` as item id."""
        if not isinstance(item_id, str):
            return None
        return self._by_item_id.get(item_id) or self._by_call_id.get(item_id)

    def _item_without_index(self, item_id: Any, kind: Any) -> ItemState:
        """Return the item of an event whose id and index are unknown: the latest open one.

        If the ids of earlier events of that item were all the same, another id is another item.
        """
        open_items = [i for i in self._items if not i.is_done and i.type in ("", kind)]
        item = open_items[-1] if open_items else None
        if item is None or (item.id_is_stable and isinstance(item_id, str) and item_id):
            return self._new_item(None, item_id, kind)
        return item

    def _open_item_with_text(self, body: OutputItem) -> ItemState | None:
        """Return the open item whose text the finished item contains; None if it has no text."""
        return next((i for i in self._items if not i.is_done and _has_same_text(i, 0, body)), None)

    def _new_item(self, index: Any, item_id: Any = None, kind: Any = None) -> ItemState:
        if len(self._items) == MAX_ITEMS:
            raise BadUpstream("upstream sent too many output items")
        is_reused = not isinstance(index, int) or index in self._by_index
        self._is_ambiguous = self._is_ambiguous or is_reused
        item = ItemState(key=len(self._items), ends_others=is_reused)
        if isinstance(kind, str):
            item.type = kind
        if isinstance(item_id, str) and item_id:
            item.id = item_id
            self._by_item_id[item_id] = item
        self._items.append(item)
        if isinstance(index, int):
            self._by_index[index] = item
        return item

    def _update_item(self, item: ItemState, body: OutputItem) -> ItemState:
        """Copy type, id, call id and name from an item object, unless they are already known."""
        kind = body.get("type")
        if type(kind) is str and kind != item.type and _is_suitable(item, kind):
            item.type = kind
        if not item.id and type(item_id := body.get("id")) is str:
            item.id = item_id
        if "call_id" in body and not item.call_id and isinstance(body["call_id"], str):
            item.call_id = body["call_id"]
            if item.call_id:
                self._by_call_id[item.call_id] = item
        if "name" in body and not item.name and isinstance(body["name"], str):
            item.name = body["name"]
        if item.id:
            self._by_item_id[item.id] = item
        return item


def _is_suitable(item: ItemState, kind: Any) -> bool:
    """Return whether the item may have events for items of type ``kind``."""
    if item.type in ("", kind):
        return True
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    return family is None or FAMILIES.get(item.type, family) == family


def _if_suitable(item: ItemState | None, kind: Any) -> ItemState | None:
    return item if item is not None and _is_suitable(item, kind) else None


def _is_same(item: ItemState, body: OutputItem) -> bool:
    """Return whether an ``output_item.added`` event repeats this item; else it adds a new one."""
    if not _is_suitable(item, body.get("type")):
        return False
    call_id = body.get("call_id")
    if item.call_id and isinstance(call_id, str) and call_id:
        return item.call_id == call_id
    if item.id and item.id == body.get("id"):
        return not item.is_done
    return not item.is_done and item.type in ("", body.get("type")) and not item.id


def _has_same_id(item: ItemState, number: int, body: OutputItem) -> bool:
    if item.type not in ("", body.get("type")):
        return False
    return bool(
        (item.id and item.id == body.get("id"))
        or (item.call_id and item.call_id == body.get("call_id"))
    )


def _has_same_text(item: ItemState, number: int, body: OutputItem) -> bool:
    """Return whether a finished item contains the text that was received for this one."""
    if item.type != body.get("type"):
        return False
    for kind, name in (("text", "content"), ("content", "content"), ("summary", "summary")):
        received = "".join(part.text for (k, _), part in item.parts.items() if k == kind)
        if received:
            # A few servers send a string or one part instead of the list of parts.
            parts = body.get(name)
            entries = parts if isinstance(parts, list) else [parts]
            texts = [entry.get("text") if isinstance(entry, dict) else entry for entry in entries]
            return "".join(text for text in texts if isinstance(text, str)).startswith(received)
    return False


def _has_same_type(item: ItemState, number: int, body: OutputItem) -> bool:
    return item.type in ("", body.get("type"))


def output_of(response: dict[str, Any]) -> Any:
    """Return the output of a response; without one, a message with its ``output_text``.

    A few servers fill only that field, which OpenAI's SDKs compute from the output.
    """
    text = response.get("output_text")
    return response.get("output") or ([{"type": "message", "content": text}] if text else [])
