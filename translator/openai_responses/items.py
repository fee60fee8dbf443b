"""Which output item an event speaks of.

Items are found by the upstream's own ``output_index``. Its ``item_id`` decides only where the
index is absent or leads to an item of another id (some proxies change ids between events, some
say one id or index 0 for everything); where both are absent it is the latest open item.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from translator.anthropic.composer import Block
from translator.said import Said

from .types import OutputItem, UpstreamEvent

Channel = Literal["", "summary", "content"]

OPENINGS: Final[Mapping[str, str]] = {
    "output_text": "text",
    "text": "text",
    "summary_text": "summary",
    "reasoning_text": "content",
}
"""What a part that is added may begin with, by its type."""


EMPTY: Final = "{}"
"""Arguments that some servers add a call with, before the real ones come piece by piece."""


def _behind(opening: str, piece: str) -> str:
    """A piece behind what came before it, unless it tells that again."""
    if opening.startswith(piece) or piece.startswith(opening):
        return piece
    return opening + piece


class Part:
    """One text of an item: a content part, or a part of a reasoning summary.

    What was said of it as text is in the blocks that it became (mostly one), and nowhere twice.
    """

    __slots__ = ("blocks", "cited", "opening", "pieces", "told", "waiting")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.opening = ""  # what it was added with, until it is said by whatever tells it again
        self.pieces: Said | None = None  # what was said of it otherwise, if anything
        self.cited: list[dict[str, Any]] = []  # annotations that were heard
        self.waiting: list[dict[str, Any]] = []  # of these, not yet sent
        self.told: dict[str, Any] | None = None  # the finished part, if nothing was said since

    @property
    def said(self) -> str:
        if len(self.blocks) == 1:
            return self.blocks[0].pieces.getvalue()
        if self.pieces is not None:
            return self.pieces.getvalue()
        return "".join([block.said for block in self.blocks])

    def first(self, piece: str) -> str:
        """A first piece behind what the part was added with, unless that is the same again."""
        opening, self.opening = self.opening, ""
        return _behind(opening, piece)

    def add(self, piece: str) -> bool:
        """Keep a piece of what is not said as text; whether it is the first."""
        first = self.pieces is None
        if self.pieces is None:
            self.pieces = Said()
        self.pieces.append(piece)
        return first


@dataclass(slots=True)
class Item:
    """One output item as far as it was heard."""

    key: int  # ours; items never share one
    type: str = ""  # "" until an event tells it
    id: str = ""
    call_id: str = ""
    name: str = ""
    begun: bool = False  # a call: its block was started
    done: bool = False  # output_item.done came; nothing more is heard of it
    channel: Channel = ""  # reasoning: which of its two texts is shown
    waiting: list[str] = field(default_factory=list)  # a call's arguments before its block
    heard: int = 0  # characters of a call's arguments
    opening: str = ""  # those that it was added with, until something tells them again
    parts: dict[tuple[str, int], Part] = field(default_factory=dict)

    def first(self, piece: str) -> str:
        """The first piece of a call's arguments, as that of a part."""
        opening, self.opening = self.opening, ""
        return piece if opening == EMPTY else _behind(opening, piece)

    def part(self, kind: str, number: int) -> Part:
        found = self.parts.get((kind, number))
        if found is None:
            found = self.parts[kind, number] = Part()
        return found

    def numbers(self, kind: str, count: int) -> list[int]:
        """The numbers under which the parts of the finished item were heard.

        vLLM counts a message's parts from 1 while it streams, and lists them from 0.
        """
        for said, number in self.parts:
            if number >= count and said == kind:
                break
        else:
            return list(range(count))
        heard = sorted([number for said, number in self.parts if said == kind])
        unheard = range(heard[-1] + 1, heard[-1] + 1 + count)
        return [*heard, *unheard][:count]


class Items:
    """Every output item of one response, in the order in which they were first heard of."""

    def __init__(self) -> None:
        self._all: list[Item] = []
        self._at: dict[int, Item] = {}  # the latest at each output_index
        self._named: dict[str, Item] = {}  # the latest of each id

    def added(self, event: UpstreamEvent, body: OutputItem) -> Item:
        """The item that ``output_item.added`` begins; a new one where its index was used before."""
        index, item_id = event.get("output_index"), body.get("id")
        item = self._at.get(index) if isinstance(index, int) else self._by_id(item_id)
        if item is not None and not _is_same(item, body):
            item = None
        return self._learned(item or self._new(index), body)

    def of(self, index: Any, item_id: Any, kind: Any) -> Item:
        """The item that a delta or done event speaks of; ``kind`` is the type it must have."""
        if type(index) is int and index in self._at:
            item = self._at[index]
            if item.id == item_id:
                return item  # nearly always
        named = self._named.get(item_id) if isinstance(item_id, str) else None
        if not isinstance(index, int):
            return named or self._latest_open(kind) or self._new(None)
        found = self._at.get(index)
        if named is not None and (found is None or found.id != item_id):
            return named
        return found or self._new(index)

    def finished(self, index: Any, body: OutputItem) -> Item:
        """The item that ``output_item.done`` ends."""
        return self._learned(self.of(index, body.get("id"), body.get("type")), body)

    def are_all_of(self, output: Any) -> bool:
        """Whether each was heard to its end, and the final ``response.output`` tells no other.

        As many of each type, that is: ``settled`` would lead no entry to an item that is new.
        """
        if not isinstance(output, list) or len(output) != len(self._all):
            return False
        for item, body in zip(self._all, output, strict=True):
            if not item.done or not isinstance(body, dict) or body.get("type") != item.type:
                return False
        return True

    def settled(self, output: list[OutputItem]) -> list[Item]:
        """For each entry of the final ``response.output`` the item that it is; new if never heard.

        Proxies renumber and rename: where neither id nor place leads to an item, the k-th entry
        of a type is the k-th heard of it. Saying something twice is worse than an odd order.
        """
        return [
            item if item.done else self._learned(item, body)
            for item, body in zip(self._matched(output), output, strict=True)
        ]

    def _matched(self, output: list[OutputItem]) -> list[Item]:
        left = list(self._all)
        found: dict[int, Item] = {}
        for same in (_same_id, _same_place(self._at), _same_type):
            if not left:
                break
            for number, body in enumerate(output):
                item = next((i for i in left if same(i, number, body)), None)
                if number not in found and item is not None:
                    found[number] = item
                    left.remove(item)
        return [found.get(number) or self._new(None) for number in range(len(output))]

    def _by_id(self, item_id: Any) -> Item | None:
        return self._named.get(item_id) if isinstance(item_id, str) else None

    def _latest_open(self, kind: Any) -> Item | None:
        fitting = [i for i in self._all if not i.done and i.type in ("", kind)]
        return fitting[-1] if fitting else None

    def _new(self, index: Any) -> Item:
        item = Item(key=len(self._all))
        self._all.append(item)
        if isinstance(index, int):
            self._at[index] = item
        return item

    def _learned(self, item: Item, body: OutputItem) -> Item:
        """Take what an item object says of itself; what was known before stays."""
        if not item.type and type(kind := body.get("type")) is str:
            item.type = kind
        if not item.id and type(item_id := body.get("id")) is str:
            item.id = item_id
        if "call_id" in body and not item.call_id and isinstance(body["call_id"], str):
            item.call_id = body["call_id"]
        if "name" in body and not item.name and isinstance(body["name"], str):
            item.name = body["name"]
        if item.id:
            self._named[item.id] = item
        return item


def _is_same(item: Item, body: OutputItem) -> bool:
    """Whether this ``added`` is about an item that was heard before, and not its successor."""
    if item.id and item.id == body.get("id"):
        return True
    return not item.done and item.type in ("", body.get("type")) and not item.id


def _same_id(item: Item, number: int, body: OutputItem) -> bool:
    if item.type not in ("", body.get("type")):
        return False
    return bool(
        (item.id and item.id == body.get("id"))
        or (item.call_id and item.call_id == body.get("call_id"))
    )


def _same_place(at: dict[int, Item]) -> Callable[[Item, int, OutputItem], bool]:
    def same(item: Item, number: int, body: OutputItem) -> bool:
        return _same_type(item, number, body) and at.get(number) is item

    return same


def _same_type(item: Item, number: int, body: OutputItem) -> bool:
    return item.type in ("", body.get("type"))
