"""Tool arguments as upstreams write them: parsed, repaired where that is safe, compact."""

import json
import re
from collections.abc import Set as AbstractSet
from json.encoder import encode_basestring
from typing import Any, Final

MAX_DEPTH: Final = 200
"""Deeper nesting is left as the raw string: parsers and clients overflow their stacks on it."""


_chunks: Final = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, json.JSONEncoder().default, encode_basestring, None, ":", ",", False, False, True
)
"""What ``JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode`` makes anew for each call.

1.9 µs for the arguments of a call, where it was 4.2.
"""


def compact_json(value: Any) -> str:
    """The one way arguments are written: compact, non-ASCII kept (prompt caches need stability)."""
    return "".join(_chunks(value, 0))


def parse_arguments(text: str) -> tuple[Any, bool]:
    """The value of a call's arguments, and whether they had to be repaired.

    Empty text and ``null`` are ``{}``; a value that is no object becomes ``{"value": …}``, since
    Anthropic's ``input`` is one. What cannot be repaired comes back as the raw string,
    repaired=True. Truncated JSON is never completed: half a command must not become a command.
    """
    if not text or text.isspace():
        return {}, False
    if not _is_shallow(text):
        return text, True
    try:
        return _as_object(_STRICT.decode(text))
    except ValueError:
        pass
    for repaired in (text, _as_json(text)):
        try:
            value = _LENIENT.decode(repaired)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value, True
    return text, True


def without_nulls(value: dict[str, Any], optional: AbstractSet[str]) -> dict[str, Any]:
    """Remove nulls of properties that were optional before strict mode made them nullable.

    ``optional`` are paths as in ``StrictSchema``: a name, or names joined by ``/``.
    """
    kept: dict[str, Any] = _without_nulls(value, optional, "")
    return kept


def _without_nulls(value: Any, optional: AbstractSet[str], path: str) -> Any:
    if isinstance(value, dict):
        below = {key: path + key.replace("~", "~0").replace("/", "~1") for key in value}
        return {
            key: _without_nulls(inner, optional, f"{below[key]}/")
            for key, inner in value.items()
            if inner is not None or below[key] not in optional
        }
    if isinstance(value, list):
        return [_without_nulls(inner, optional, f"{path}*/") for inner in value]
    return value


def _as_object(value: Any) -> tuple[Any, bool]:
    match value:
        case dict():
            return value, False
        case None:
            return {}, False
        case str():
            # Some servers encode the arguments twice.
            try:
                inner = _STRICT.decode(value)
            except ValueError:
                inner = None
            return (inner, True) if isinstance(inner, dict) else ({"value": value}, True)
        case _:
            return {"value": value}, True


def _is_shallow(text: str) -> bool:
    """Whether brackets nest at most MAX_DEPTH deep; counts those inside strings too (errs deep)."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return True
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "{[" else -1
        if depth > MAX_DEPTH:
            return False
    return True


def _as_json(text: str) -> str:
    """Python's spelling rewritten as JSON's, and trailing commas removed; "" where hopeless."""
    pieces: list[str] = []
    for token in _TOKEN.finditer(text):
        piece, kind = token.group(), token.lastgroup
        if kind in QUOTED and token[f"{kind}_end"] is None:  # never closed: truncated, hands off
            return ""
        match kind:
            case "single":
                pieces.append(_double_quoted(piece[1:-1]))
            case "comma":
                continue
            case "word":
                pieces.append(PYTHON_WORDS[piece])
            case _:
                pieces.append(piece)
    return "".join(pieces)


def _double_quoted(inner: str) -> str:
    return '"' + _QUOTE.sub(lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), inner) + '"'


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(digits)  # JSON could not say it again
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's


QUOTED: Final = frozenset({"double", "single"})
PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}

_STRICT: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_LENIENT: Final = json.JSONDecoder(
    strict=False, parse_float=_finite, parse_constant=_no_constant
)  # takes line breaks inside strings
_BRACKET: Final = re.compile(r"[\[\]{}]")
_QUOTE: Final = re.compile(r'\\.|"', re.DOTALL)
_TOKEN: Final = re.compile(
    r"""
    (?P<double>"(?:[^"\\]|\\.)*(?P<double_end>")?)
    | (?P<single>'(?:[^'\\]|\\.)*(?P<single_end>')?)
    | (?P<comma>,(?=\s*[}\]]))
    | (?P<word>\b(?:True|False|None)\b)
    | (?P<other>[^"',TFN]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""A string that is never closed matches, too, without its end: if it did not, each quote in it
would be tried as a beginning of its own."""
