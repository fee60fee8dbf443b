"""Explain validation errors of msgspec with the path, the value at the path, and a suggestion."""

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
SECRET: Final = re.compile(r"\.(client_secret|proxy_auth)\b")
AT: Final = re.compile(r" - at `(?:key in )?\$")
"""The text before the path in msgspec's message. A backtick at the end of the message ends the
path."""

MAX_WORD: Final = 100
"""Characters of a word that are compared and shown: difflib needs seconds for a word of 30 MB."""
MANAGED: Final = "{} is managed by bridge.toml; change it there and run applyconfig"
"""The error if a user changes an object in the admin or by REST that ``bridge.toml`` declares."""


def type_errors(value: Any, kind: Any, decode: Decode) -> list[str]:
    """Return each mistake of a value: its path, the value at the path and what is right.

    ``decode`` converts a value to a type, or raises msgspec.ValidationError.
    """
    return [_explained(error, kind, value) for error in _errors(value, kind, decode)]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'model'?``, or the list of known words if none is similar."""
    known = sorted(known)
    near = difflib.get_close_matches(word[:MAX_WORD], known, n=1, cutoff=0.65)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def _errors(value: Any, kind: Any, decode: Decode, at: str = "") -> Iterator[str]:
    """Yield msgspec's error message for each wrong field of a value, where msgspec reports one."""
    found: list[str] = []
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    place = f" - at `${at}`" if at else ""
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct) and isinstance(value, dict):
        fields = {entry.encode_name: entry for entry in msgspec.structs.fields(plain)}
        for name, inner in value.items():
            if name in fields:
                found += _errors(inner, fields[name].type, decode, f"{at}.{name}")
            else:
                found.append(f"Object contains unknown field `{name}`{place}")
        found += [
            f"Object missing required field `{name}`{place}"
            for name, entry in fields.items()
            if entry.required and name not in value
        ]
    elif get_origin(plain) is list and isinstance(value, list):
        for number, inner in enumerate(value):
            found += _errors(inner, get_args(plain)[0], decode, f"{at}[{number}]")
    if not found:
        try:
            decode(value, kind)
        except msgspec.ValidationError as error:
            text = str(error)  # its own path begins at ``at``
            has_path = AT.search(text)
            moved = AT.sub(lambda match: f"{match[0]}{at}", text, count=1)
            found.append(moved if has_path else f"{text}{place}")
    yield from found


def _explained(error: str, kind: Any, value: Any) -> str:
    if unknown := UNKNOWN.match(error):
        known = [
            one.encode_name
            for struct in _structs(_kind_at(kind, unknown["at"] or ""))
            for one in msgspec.structs.fields(struct)
        ]
        key = unknown["key"][:MAX_WORD]
        return f"{_path(unknown['at'])}unknown key {key!r}{did_you_mean(key, known)}"
    match = AT.search(error) if error.endswith("`") else None
    what, at = (error[: match.start()], error[match.end() : -1]) if match else (error, "")
    text = _path(at) + what.replace("`", "")
    # The value may be a secret, also the text in place of ``credentials``: do not repeat it.
    if SECRET.search(at) or what == "Expected `object`, got `str`":
        return text
    if "[...]" not in at:  # else the path has no key of an entry
        for step in STEP.finditer(at):
            value = value[step["key"]] if step["key"] else value[int(step["place"])]
        shown = repr(value) if isinstance(value, str) else str(value)
        if not isinstance(value, dict | list) and shown not in what:
            text += f", found {shown}"
    if what.startswith(("Invalid enum", "Invalid value")):
        words = ", ".join(repr(word) for word in _literals(_kind_at(kind, at)))
        text += f"; expected one of {words}"
    return text


def _path(at: str | None) -> str:
    return f"{at.lstrip('.')}: " if at else ""


def _kind_at(kind: Any, at: str) -> Any:
    """Return the annotated type of the last key of the path ``at``.

    For an entry of a list, this is the type of the list. The key that selects one struct of a union
    has the type ``Literal`` of the possible values.
    """
    for name in re.findall(r"\.(\w+)", at):
        structs = list(_structs(kind))
        types = {
            one.encode_name: one.type
            for struct in structs
            for one in msgspec.structs.fields(struct)
        }
        tags = tuple(struct.__struct_config__.tag for struct in structs)
        kind = types.get(name) or Literal[tags]
    return kind


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
