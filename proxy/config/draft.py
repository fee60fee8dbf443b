"""A bridge.toml with mistakes: the entries whose values can be read, without the others.

So the references of these entries are checked although other entries have wrong values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec

from .schema import BridgeFile

ENTRIES: Final[Mapping[str, Any]] = {
    one.name: get_args(one.type)[0] for one in msgspec.structs.fields(BridgeFile)
}
"""Name of a list of the file -> the type of its entries."""
PLACE: Final = re.compile(rf"(?<![.\w])({'|'.join(ENTRIES)})\[(\d+)\]")
"""The path of an entry in a message; a list inside an entry has another path before it."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What can be read of a bridge.toml.

    ``mistakes``: of the values. ``wrong``: kind and name of the entries that are left out; the name
    is None if it cannot be read. ``places``: the place in the file of each entry of a list.
    """

    file: BridgeFile
    mistakes: list[str] = field(default_factory=list)
    wrong: set[tuple[str, str | None]] = field(default_factory=set)
    places: dict[str, Sequence[int]] = field(default_factory=dict)

    def with_places_of_file(self, message: str) -> str:
        """Return a message about ``file`` with the paths of the whole file."""

        def in_file(found: re.Match[str]) -> str:
            place, places = int(found[2]), self.places.get(found[1], ())
            return f"{found[1]}[{places[place] if place < len(places) else place}]"

        return PLACE.sub(in_file, message)


def without_wrong_entries(
    tables: Mapping[str, Any], decode: Callable[[Any, Any], Any], mistakes: list[str]
) -> Draft:
    """Return the draft of a file without the entries that ``decode`` rejects."""
    draft = Draft(BridgeFile(), mistakes)
    for name, kind in ENTRIES.items():
        entries = tables.get(name, [])
        if not isinstance(entries, list):
            draft.wrong.add((name.removesuffix("s"), None))
            continue
        read: dict[int, Any] = {}
        for place, entry in enumerate(entries):
            try:
                read[place] = decode(entry, kind)
            except msgspec.ValidationError:
                draft.wrong.add((name.removesuffix("s"), _name_of(name, entry)))
        setattr(draft.file, name, list(read.values()))
        draft.places[name] = list(read)
    return draft


def _name_of(list_name: str, entry: Any) -> str | None:
    """Return the name by which other entries refer to this one, if it can be read."""
    parts = ("team", "name") if list_name == "keys" else ("name",)
    found = [entry.get(part) if isinstance(entry, dict) else None for part in parts]
    texts = [text for text in found if isinstance(text, str)]
    return "/".join(texts) if len(texts) == len(parts) else None
