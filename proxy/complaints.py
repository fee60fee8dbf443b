"""What is wrong with a value of some kind, in words: where, what stands there, what was meant.

msgspec judges by types; here its message becomes ours.
"""

import datetime as dt
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

UNKNOWN: Final = re.compile(
    r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<at>.*)`)?$"
)
STEP: Final = re.compile(r"\.(?P<key>\w+)|\[(?P<place>\d+)\]")
SECRET: Final = re.compile(r"\.(api_key|secret|webhook_secret)\b")
AT: Final = re.compile(r" - at `(?:key in )?\$")
"""Stands before the path, which ends in a backtick at the end of the message."""


MANAGED: Final = "{} is managed by bridge.toml; change it there and run applyconfig"
"""Why nobody writes an object elsewhere that the file declares."""


def told(error: str, kind: Any, value: Any) -> str:
    """The decoder's message with our path, what stands there, and what was probably meant.

    ``kind`` and ``value``: what was to be made of what.
    """
    unknown = UNKNOWN.match(error)
    if unknown:
        known = _keys_at(kind, unknown["at"] or "")
        where = _path(unknown["at"])
        return f"{where}unknown key {unknown['key']!r}{did_you_mean(unknown['key'], known)}"
    found = AT.search(error) if error.endswith("`") else None
    what, at = (error[: found.start()], error[found.end() : -1]) if found else (error, "")
    if SECRET.search(at):  # whatever stands there is not repeated
        if "got `str`" in what:
            what = 'a secret is never written here: { env = "NAME" } or { file = "/path" }'
        return _path(at) + what.replace("`", "")
    expected = _expected(_kind_at(kind, at), what)
    return _path(at) + what.replace("`", "") + _found(at, value, what) + expected


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'model'?``, or the list of what is known when nothing is near."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def _path(at: str | None) -> str:
    return f"{at.lstrip('.')}: " if at else ""


def _found(at: str, value: Any, what: str) -> str:
    """``, found 5``: the plain value that stands at a path, unless the message holds it."""
    for step in STEP.finditer(at):
        value = value[step["key"]] if step["key"] else value[int(step["place"])]
    shown = repr(value) if isinstance(value, str) else str(value)
    return "" if isinstance(value, dict | list) or shown in what else f", found {shown}"


def _expected(kind: Any, what: str) -> str:
    """What may stand at a path, where that is one of some words, or a date."""
    if what.startswith("Invalid enum"):
        return f"; expected one of {', '.join(repr(word) for word in _words(kind))}"
    return "; a date is written 2026-01-01, without quotes" if kind is dt.date else ""


def _keys_at(kind: Any, at: str) -> list[str]:
    """The keys of the struct that a path leads to."""
    struct = next(_structs(_kind_at(kind, at)))
    return [entry.encode_name for entry in msgspec.structs.fields(struct)]


def _kind_at(kind: Any, at: str) -> Any:
    """The annotated type of the key that a path ends in; of a list, not of its entries."""
    for name in re.findall(r"\.(\w+)", at):
        entries = msgspec.structs.fields(next(_structs(kind)))
        kind = next(entry.type for entry in entries if entry.encode_name == name)
    return kind


def _words(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for inner in get_args(kind):
            yield from _words(inner)


def _structs(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structs(inner)
