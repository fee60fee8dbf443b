"""Joins halves of surrogate pairs: an emoji that an upstream cut in two, half in each event.

JSON can carry a half, UTF-8 and so our clients cannot. A half at the end of a piece waits for the
next event: if that begins with the other half at the same place, the two are one character there.
Whatever half finds no partner is U+FFFD, once.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from .arguments import compact_json

Event = dict[str, Any]

HALF: Final = re.compile("[\ud800-\udfff]")
FIRST: Final = re.compile("[\ud800-\udbff]")
SECOND: Final = re.compile("[\udc00-\udfff]")
UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"

DELTA: Final = "delta"
"""Under this key stand pieces of what goes on in the next event, in both of OpenAI's APIs."""

GROWING: Final = frozenset(
    {DELTA, "content", "refusal", "arguments", "text", "thinking", "summary"}
    | {"reasoning", "reasoning_content", "reasoning_text"}
)
"""What of a delta is a piece of a text; anything else in it is whole."""

PLACES: Final = frozenset({"type", "index", "output_index", "content_index", "summary_index"})
"""What tells where a piece belongs: in two pieces of one text it does not differ."""

KEPT: Final = PLACES | {"id", "item_id"}
"""What leads a half without a partner to its place; servers make up ids for each event."""


def sound(value: Any) -> Any:
    """The same JSON with each half replaced: it can be written as UTF-8."""
    return _parted(value, "", pieces=False)[0]


class Halves:
    """Takes the events of one stream, gives back what a client can be sent of them."""

    def __init__(self) -> None:
        self._held: Any = None  # an event that is nothing but halves, each in its place

    def joined(self, event: Event) -> list[Event]:
        """The event without its halves, behind what was held and does not go on in it."""
        if self._held is None and HALF.search(compact_json(event)) is None:
            return [event]
        event, lone = _met(self._held, event)
        self._held = lone
        before = self.rest()
        event, self._held = _parted(event, "", pieces=not _is_last(event))
        return [*before, event]

    def rest(self) -> list[Event]:
        """What waits for a partner that does not come any more."""
        held, self._held = self._held, None
        return [] if held is None else [sound(_without_gaps(held))]


def _is_last(event: Event) -> bool:
    """Whether nothing goes on behind it."""
    choices = event.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
    )


def _parted(value: Any, name: str, *, pieces: bool, inside: bool = False) -> tuple[Any, Any]:
    """A value without halves, and the halves at the ends of its pieces, in their places (or None).

    ``name``: the key that it stands under; ``inside``: there is a delta around it.
    """
    inside = inside or name == DELTA
    if isinstance(value, str):
        half = None
        if pieces and inside and name in GROWING and FIRST.match(value[-1:]):
            value, half = value[:-1], value[-1]
        return HALF.sub(UNKNOWN, value), half
    if isinstance(value, list):
        both = [_parted(each, name, pieces=pieces, inside=inside) for each in value]
        held = [half for _, half in both]
        return [each for each, _ in both], held if any(held) else None
    if isinstance(value, dict):
        parted = {
            HALF.sub(UNKNOWN, key): _parted(each, key, pieces=pieces, inside=inside)
            for key, each in value.items()
        }
        kept = {key: half for key, (_, half) in parted.items() if half is not None}
        whole = {key: each for key, (each, _) in parted.items()}
        if kept:
            kept |= {key: whole[key] for key in KEPT & whole.keys()}
        return whole, kept or None
    return value, None


def _met(held: Any, value: Any) -> tuple[Any, Any]:
    """A value with the halves that its pieces go on from, and the halves that found no partner."""
    if isinstance(held, str):
        if isinstance(value, str) and SECOND.match(value):
            pair = (held + value[0]).encode("utf-16", "surrogatepass").decode("utf-16")
            return pair + value[1:], None
    elif isinstance(held, list):
        if isinstance(value, list):
            both = [_met(half, each) for half, each in zip(held, value, strict=False)]
            lone = [half for _, half in both] + held[len(value) :]
            return [each for each, _ in both] + value[len(held) :], lone if any(
                half is not None for half in lone
            ) else None
    elif isinstance(held, Mapping) and isinstance(value, dict) and _same_place(held, value):
        whole, left = dict(value), dict[str, Any]()
        for key in held.keys() - KEPT:
            met, half = _met(held[key], value.get(key))
            if key in value:
                whole[key] = met
            if half is not None:
                left[key] = half
        if left:
            left |= {key: held[key] for key in KEPT & held.keys()}
        return whole, left or None
    return value, held


def _without_gaps(held: Any) -> Any:
    """Lists with nothing in them but what holds a half."""
    if isinstance(held, list):
        return [_without_gaps(each) for each in held if each is not None]
    if isinstance(held, dict):
        return {key: _without_gaps(each) for key, each in held.items()}
    return held


def _same_place(held: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return all(value.get(key) in (None, "", held[key]) for key in PLACES & held.keys())
