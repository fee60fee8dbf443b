"""Explain validation errors of msgspec with the path, the value at the path, and a suggestion."""

import datetime as dt
import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

Decode = Callable[[Any, Any], object]
UNKNOWN: Final = re.compile(
    r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<at>.*)`)?$"
)
STEP: Final = re.compile(r"\.(?P<key>\w+)|\[(?P<place>\d+)\]")
SECRET: Final = re.compile(r"\.(api_key|secret|previous_secret|client_secret)\b")
AT: Final = re.compile(r" - at `(?:key in )?\$")
"""The text before the path in msgspec's message. A backtick at the end of the message ends the
path."""

MAX_WORD: Final = 100
"""Characters of a word that are compared and shown: difflib needs seconds for a word of 30 MB."""
MANAGED: Final = "{} is managed by bridge.toml; change it there and run applyconfig"
"""The error if a user changes an object in the admin or by REST that ``bridge.toml`` declares."""


def explain_decode_error(error: str, kind: Any, value: Any) -> str:
    """Return msgspec's error message with the path, the value found at that path, and a suggestion.

    ``value`` is the decoded input, ``kind`` is the type that ``value`` should have.
    """
    unknown = UNKNOWN.match(error)
    if unknown:
        known = _keys_at(kind, unknown["at"] or "")
        where = _path(unknown["at"])
        key = unknown["key"][:MAX_WORD]
        return f"{where}unknown key {key!r}{did_you_mean(key, known)}"
    found = AT.search(error) if error.endswith("`") else None
    what, at = (error[: found.start()], error[found.end() : -1]) if found else (error, "")
    if SECRET.search(at):  # the value may be a secret: do not repeat it
        if "got `str`" in what:
            what = 'a secret is never written here: { env = "NAME" } or { file = "/path" }'
        return _path(at) + what.replace("`", "")
    expected = _expected(_kind_at(kind, at), what)
    return _path(at) + what.replace("`", "") + _found_value(at, value, what) + expected


def type_errors(value: Any, kind: Any, decode: Decode) -> list[str]:
    """Return each mistake of a value, with its path, the wrong part and the expected type."""
    return [
        explain_decode_error(error, kind, value) for error in decode_errors(value, kind, decode)
    ]


def decode_errors(value: Any, kind: Any, decode: Decode, at: str = "") -> Iterator[str]:
    """Yield msgspec's error message for each wrong field of a value, where msgspec reports one.

    ``decode`` converts a value to a type, or raises msgspec.ValidationError. ``at``: the path of
    the value.
    """
    found: list[str] = []
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct) and isinstance(value, dict):
        fields = {entry.encode_name: entry for entry in msgspec.structs.fields(plain)}
        place = f" - at `${at}`" if at else ""
        for name, inner in value.items():
            if name in fields:
                found += decode_errors(inner, fields[name].type, decode, f"{at}.{name}")
            else:
                found.append(f"Object contains unknown field `{name}`{place}")
        found += [
            f"Object missing required field `{name}`{place}"
            for name, entry in fields.items()
            if entry.required and name not in value
        ]
    elif get_origin(plain) is list and isinstance(value, list):
        for number, inner in enumerate(value):
            found += decode_errors(inner, get_args(plain)[0], decode, f"{at}[{number}]")
    if not found:
        try:
            decode(value, kind)
        except msgspec.ValidationError as error:
            found.append(_moved(str(error), at))
    yield from found


def _moved(error: str, at: str) -> str:
    """Return the message about a value at the path ``at``, whose own path begins there."""
    if not at:
        return error
    if AT.search(error):
        return AT.sub(lambda found: f"{found[0]}{at}", error, count=1)
    return f"{error} - at `${at}`"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'model'?``, or the list of known words if none is similar."""
    known = sorted(known)
    near = difflib.get_close_matches(word[:MAX_WORD], known, n=1, cutoff=0.65)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def _path(at: str | None) -> str:
    return f"{at.lstrip('.')}: " if at else ""


def _found_value(at: str, value: Any, what: str) -> str:
    """Return the value at the path as ``, found 5``; empty if the message contains the value.

    It is empty, too, if the path does not name the key of an entry, but has ``[...]`` instead.
    """
    if "[...]" in at:
        return ""
    for step in STEP.finditer(at):
        value = value[step["key"]] if step["key"] else value[int(step["place"])]
    shown = repr(value) if isinstance(value, str) else str(value)
    return "" if isinstance(value, dict | list) or shown in what else f", found {shown}"


def _expected(kind: Any, what: str) -> str:
    """Return a text with the allowed words of an enum or the date format; else an empty text."""
    if what.startswith(("Invalid enum", "Invalid value")):
        return f"; expected one of {', '.join(repr(word) for word in _literals(kind))}"
    return "; a date is written 2026-01-01, without quotes" if kind is dt.date else ""


def _keys_at(kind: Any, at: str) -> list[str]:
    """Return the keys of the msgspec struct, or of all structs of a union, at the path ``at``."""
    return [entry.encode_name for entry in _fields(_kind_at(kind, at))]


def _kind_at(kind: Any, at: str) -> Any:
    """Return the annotated type of the last key of the path ``at``.

    For an entry of a list, this is the type of the list. The key that selects one struct of a union
    has the type ``Literal`` of the possible values.
    """
    for name in re.findall(r"\.(\w+)", at):
        tags = [struct.__struct_config__.tag for struct in _structs(kind)]
        found = (entry.type for entry in _fields(kind) if entry.encode_name == name)
        kind = next(found, None) or Literal[tuple(tags)]
    return kind


def _fields(kind: Any) -> Iterator[Any]:
    for struct in _structs(kind):
        yield from msgspec.structs.fields(struct)


def _literals(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for inner in get_args(kind):
            yield from _literals(inner)


def _structs(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structs(inner)
