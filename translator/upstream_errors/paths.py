"""Translate paths of the upstream's body in error messages to paths of the client's request.

Claude Code drops a picture or PDF from its history by itself if an error names it by Anthropic's
path, such as ``messages.2.content.0.tool_result.content.1.image``. So paths are translated whole.
A path that has no counterpart in the client's request stays as the upstream wrote it: a shorter
path would blame something else.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from translator.dialect import Origin, UpstreamError

BODY_PATH: Final = re.compile(
    r"(?<![\w.\])])(?:\$\.|body\.)?(?:input|messages)\.?(?:\[(\d{1,6})\]|\.(\d{1,6})\b)"
    r"((?:\.\w+|\.?\[\d{1,6}\])*+)(?!\w|\[|\(|\.\w| ?=)"
)
"""A path into the history. What follows it excludes program code, which an error may quote."""
SEGMENT: Final = re.compile(r"\w+")
MESSAGE_PARTS: Final = 4
"""Segments of the path of a block in a message: ``messages.2.content.0``."""

PART_FIELDS: Final = {
    "cache_control": ("prompt_cache_breakpoint",),
    "source": (
        "image_url", "image_url.url", "file", "file.file_data", "file_data", "file_url",
    ),
    "title": ("file.filename", "filename"),
    "": ("", "text", "type"),
}  # fmt: skip
"""Field of the client's block -> fields of the upstream's part that are made from it."""
ENTRY_FIELDS: Final = {
    "tool_result": {"output": "content", "content": "content", "call_id": "tool_use_id",
                    "tool_call_id": "tool_use_id"},
    "tool_use": {"arguments": "input", "function.arguments": "input", "name": "name",
                 "function.name": "name", "call_id": "id", "id": "id"},
    "": {"content": "content", "role": "role"},
}  # fmt: skip
"""The same for the fields of a whole entry, by the type of the block that it is made from."""

_BY_PART_FIELD: Final = {theirs: ours for ours, many in PART_FIELDS.items() for theirs in many}


def map_error_paths(error: UpstreamError, origins: Sequence[Origin]) -> UpstreamError:
    """Replace paths such as ``input[3].content[0].image_url`` by the client's paths.

    ``origins[3]`` is where entry 3 of the upstream's history came from.
    """

    def translate(match_: re.Match[str]) -> str:
        number = int(match_[1] or match_[2])
        if number >= len(origins):
            return match_[0]
        return _translate(origins[number], SEGMENT.findall(match_[3])) or match_[0]

    if not origins:
        return error
    return dataclasses.replace(
        error,
        message=BODY_PATH.sub(translate, error.message),
        param=BODY_PATH.sub(translate, error.param) if error.param else error.param,
    )


def anthropic_path(path: str) -> str:
    """Return the path of a nested block as Anthropic writes it: with the types of the outer blocks.

    ``messages.2.content.0.content.1.image`` -> ``messages.2.content.0.tool_result.content.1.image``
    """
    segments = path.split(".")
    outer, inner = segments[:MESSAGE_PARTS], segments[MESSAGE_PARTS:]
    if inner[:1] == ["content"]:
        outer += ["tool_result", *inner[:2]]
        inner = inner[2:]
    if inner[:2] == ["source", "content"]:
        outer.append("document")
    return ".".join(outer + inner)


def renumbered(origins: Sequence[Origin], numbers: Sequence[int]) -> tuple[Origin, ...]:
    """Return the origins in a request whose message N came from the client's ``numbers[N]``.

    A message that became several has no paths below it.
    """
    parts = Counter(numbers)

    def renumber(path: str) -> str:
        name, *rest = path.split(".")
        if name != "messages" or not rest:
            return path
        number = numbers[int(rest[0])]
        return ".".join([name, str(number), *(rest[1:] if parts[number] == 1 else ())])

    return tuple(
        Origin(renumber(one.path), *(tuple(map(renumber, paths)) for paths in one[1:]))
        for one in origins
    )


Body = Mapping[str, Any]


def moved_origins(before: Body, after: Body, origins: Sequence[Origin]) -> tuple[Origin, ...]:
    """Return the origins of a history that one edit has changed: some became other entries.

    Edits keep the objects that they only move: whole entries, parts and tool calls. What an edit
    wrote anew has the origin of what was there, if the number of entries, or of parts, is the same.
    """
    name = "input" if "input" in before else "messages"
    old, new = before.get(name), after.get(name)
    if old is new or not (origins and isinstance(old, list) and isinstance(new, list)):
        return tuple(origins)
    entries = {id(entry): origin for entry, origin in zip(old, origins, strict=False)}
    inner: dict[int, str] = {}
    for entry, origin in zip(old, origins, strict=False):
        inner.update(zip(map(id, _parts(entry)), origin.parts, strict=False))
        inner.update(zip(map(id, entry.get("tool_calls") or ()), origin.calls, strict=False))

    def places(made: Sequence[Any], earlier: tuple[str, ...]) -> tuple[str, ...]:
        same = earlier if len(earlier) == len(made) else ("",) * len(made)
        return tuple(inner.get(id(one), path) for one, path in zip(made, same, strict=True))

    def origin_of(entry: dict[str, Any], earlier: Origin) -> Origin:
        known = entries.get(id(entry))
        if known is not None:
            return known
        calls = places(entry.get("tool_calls") or (), earlier.calls)
        return Origin(earlier.path, places(_parts(entry), earlier.parts), calls)

    same = origins if len(old) == len(new) == len(origins) else (Origin(""),) * len(new)
    return tuple(map(origin_of, new, same))


def _parts(entry: dict[str, Any]) -> Sequence[Any]:
    for name in ("content", "output"):
        if isinstance(entry.get(name), list):
            parts: list[Any] = entry[name]
            return parts
    return ()


def _translate(origin: Origin, fields: list[str]) -> str:
    """Return the client's path of a field inside of an entry; "" if it has none."""
    if origin.path == "system":
        return origin.path if not fields or fields[0] == "content" else ""
    if len(fields) > 1 and fields[1].isdigit():
        number = int(fields[1])
        paths = origin.calls if fields[0] == "tool_calls" else origin.parts
        if fields[0] not in ("content", "output", "tool_calls") or number >= len(paths):
            return ""
        path = anthropic_path(paths[number])
        rest = ".".join(fields[2:])
        if fields[0] == "tool_calls":
            return _field(path, ENTRY_FIELDS["tool_use"].get(rest)) if rest else path
        return _field(path, _BY_PART_FIELD.get(rest))
    path = anthropic_path(origin.path)
    if not fields or not path:
        return path
    kind = path.rpartition(".")[2]
    return _field(path, ENTRY_FIELDS.get(kind, ENTRY_FIELDS[""]).get(".".join(fields)))


def _field(path: str, name: str | None) -> str:
    """Return the path of a field; the path itself for ``""``, and "" for no field (None)."""
    if name is None or not path:
        return ""
    return f"{path}.{name}" if name else path
