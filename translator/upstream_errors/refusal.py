"""An upstream's error about a part of the request, read without trusting what the client wrote.

Servers quote the request in their errors: a URL, a tool's name, a text, a schema. Whoever writes
those could otherwise choose which repair the gateway makes, and what it remembers for all callers.
So an error is read in this order: its code and the path in ``param`` (or pydantic's ``loc``), which
the server writes itself; then its words, without those that the request contains. Words that occur
in the request count as the client's, so an error may be left alone that a repair would have helped;
the opposite never happens.
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Final

from .body_parser import MAX_PARTS, read_error, unwrapped

RUN: Final = 6
"""Words. A run of so many words of the request is a quotation; ordinary sentences share fewer."""
PHRASE: Final = 3
"""Words. An error's phrase of so many words counts as the client's if the request contains it."""
MAX_CLIENT_TEXT: Final = 4 * 2**20
"""Characters of all texts of a request in all their forms. The words of an error about a longer
request are not read, only code and param."""
DATA_URL_HEAD: Final = 128
MAX_NAMES: Final = 64

_WORD: Final = re.compile(r"[A-Za-z0-9_]+")
_WORD_BYTES: Final = bytes(
    byte if _WORD.fullmatch(chr(byte)) else ord(" ") for byte in bytes(range(256)).lower()
)
"""For ``bytes.translate``: lower case, and a space for each byte that is in no word."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_=-]*")
_PERCENT: Final = re.compile(rb"(?:%[0-9a-fA-F]{2})++")
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_INDEX: Final = re.compile(r"\[(?:\d{1,6}|\*)?\]|\.\d{1,6}(?=\.|\Z)")
_QUOTED: Final = re.compile(r"['\"`]([A-Za-z_][\w.\[\]*]{0,127})['\"`]", re.ASCII)
_NAME: Final = r"[A-Za-z_][\w.\[\]]{0,127}"
_AFTER_WORD: Final = re.compile(
    r"\b(?:supplied|permitted|param(?:eter)?s?|arguments?|fields?|propert(?:y|ies)|keys?|name"
    rf"|unsupported|unknown|unrecognized)\b ?(?:is |are )?[:=]? ?(?=({_NAME})(?:, ?({_NAME}))?)",
    re.ASCII | re.IGNORECASE,
)
_BEFORE_WORDS: Final = re.compile(
    rf"(?<![\w.])({_NAME}):?\s{{1,4}}(?:extra (?:inputs|fields) (?:are )?not permitted"
    r"|(?:is|are) (?:not|un)|(?:does|do)(?: not|n't) |(?:unknown|unsupported|unrecognized) )",
    re.ASCII | re.IGNORECASE,
)
_PATH: Final = re.compile(
    r"(?<![\w.])([A-Za-z_]\w{0,63}(?:\[\d{1,6}\]|\.\w{1,63}){1,12})", re.ASCII
)
_LIST: Final = re.compile(
    r"\bexpected (?:one of |either )?['\"`]"  # serde
    r"|\b(?:supported|valid|allowed|accepted|known|permitted) (?:param(?:eter)?|field|argument|key"
    r"|name|propert)\w{0,5}(?: names)?(?: are)?:",
    re.IGNORECASE,
)
OWN_FIELDS: Final = frozenset({"include", "reasoning"})
"""Fields of a body whose values the gateway writes itself, in several words."""
CLIENT_KEYS: Final = frozenset({"parameters", "properties", "schema", "arguments", "input_schema"})
"""A path below one of these names a part of the client's own schema or call."""


class Refusal:
    """What one error response says about the body that was sent."""

    def __init__(self, body: Mapping[str, Any], status: int, error: Any) -> None:
        self.status = status
        self._body = body
        fields = read_error(error)
        self.code, self.param, self.raw = fields.code, fields.param, fields.message
        self.type = fields.type
        self._paths = [*([self.param] if self.param else []), *_locations(error)]

    def says(self, *patterns: re.Pattern[str]) -> str:
        """Return the server's own words that match the patterns; "" unless all of them match."""
        if not all(pattern.search(self.raw) for pattern in patterns):
            return ""  # the request need not be read
        found = [pattern.search(self.words) for pattern in patterns]
        texts = [match_[0] for match_ in found if match_ is not None]
        if len(texts) < len(patterns) or any(map(self._is_quotation, texts)):
            return ""
        return " … ".join(texts)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the server's ``param`` and ``loc``, with ``[]`` for each index."""
        return tuple(filter(None, map(field_path, self._paths)))

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Return the paths and names that the server's own words contain, in their order.

        Names that the server lists as the right ones are left out.
        """
        names: dict[str, None] = {}
        listed = _LIST.search(self.words)
        end = listed.start() if listed is not None else len(self.words)
        for pattern in (_AFTER_WORD, _QUOTED, _BEFORE_WORDS, _PATH):
            for match_ in pattern.finditer(self.words, 0, end):
                for name in match_.groups():
                    if name and len(names) < MAX_NAMES and not self._is_quotation(match_[0]):
                        names[field_path(name)] = None
        return tuple(filter(None, names))

    @cached_property
    def words(self) -> str:
        """Return the error's text without what it quotes of the request."""
        if self._client is None:
            return ""
        spans = [match_.span() for match_ in _WORD.finditer(self.raw)]
        words = [self.raw[start:end].lower().encode() for start, end in spans]
        marks = {word: chr(number) for number, word in enumerate(dict.fromkeys(words), 1)}
        said = "".join(marks[word] for word in words)
        cut = [False] * len(words)
        for size, quoted in _quotations(said, marks, self._client).items():
            for at in range(len(words) - size + 1):
                if said[at : at + size] in quoted:
                    cut[at : at + size] = [True] * size
        text = [*self.raw]
        for is_cut, (start, end) in zip(cut, spans, strict=True):
            if is_cut:
                text[start:end] = "\0" * (end - start)
        return "".join(text)

    def _is_quotation(self, text: str) -> bool:
        """Return whether the request contains these words; one or two words prove nothing."""
        words = _words(text)
        if len(words) < PHRASE or self._client is None:
            return False
        return b" %b " % b" ".join(words) in self._client.text

    @cached_property
    def _client(self) -> "_ClientWords | None":
        """Return the words of the request; None if it is too long."""
        texts: list[bytes] = []
        short: set[tuple[bytes, ...]] = set()
        size = 0
        sent = {name: value for name, value in self._body.items() if name not in OWN_FIELDS}
        for form in (form for text in _strings(sent) for form in _forms(text)):
            size += len(form)
            if size > MAX_CLIENT_TEXT:
                return None
            words = _words(form)
            texts.append(b" ".join(words))
            if 1 < len(words) < RUN:
                short.add(tuple(words))
        return _ClientWords(b" %b " % b" ".join(texts), short)


@dataclass(frozen=True, slots=True)
class _ClientWords:
    """The words of a request in lower case: all of them, and its short strings as wholes."""

    text: bytes
    short: set[tuple[bytes, ...]]


def _quotations(said: str, marks: Mapping[bytes, str], client: _ClientWords) -> dict[int, set[str]]:
    """Return the runs of words that an error has from the request, by their number of words.

    ``said``: the error, with one character for each word, which ``marks`` has by word. A request
    may have millions of words, so it is compared in this form, without a step of Python for each.
    """
    sent = "".join(map(marks.get, client.text.split(), repeat("\0")))
    runs = {run for run in sent.split("\0") if len(run) >= RUN}
    sent_runs = (run[at : at + RUN] for run in runs for at in range(len(run) - RUN + 1))
    quoted = {RUN: _runs(said, RUN).intersection(sent_runs)}
    short = {"".join(marks.get(word, "\0") for word in words) for words in client.short}
    for size in range(2, RUN):
        quoted[size] = _runs(said, size) & short
    return quoted


def _runs(text: str, size: int) -> set[str]:
    return {text[at : at + size] for at in range(len(text) - size + 1)}


def _words(text: str) -> list[bytes]:
    """Return the words of a text in lower case; other letters than a to z separate them."""
    return text.encode(errors="replace").translate(_WORD_BYTES).split()


def field_path(name: str) -> str:
    """Return a server's spelling of a path as ``input[].phase``; "" if it is the client's own."""
    path = _INDEX.sub("[]", name.strip().strip(".").removeprefix("body.").removeprefix("$."))
    path = path.removeprefix("[].").replace("[][]", "[]")
    return "" if CLIENT_KEYS & {*path.replace("[]", "").split(".")} else path


def _locations(error: Any) -> Iterator[str]:
    """Yield the paths in ``loc`` of pydantic's faults, as FastAPI, vLLM and Mistral send them.

    Mistral puts them into ``message``, as an object or as its JSON. ASP.NET's are the names of
    ``errors``.
    """
    if isinstance(error, list):
        for fault in error[:MAX_PARTS]:
            yield from _locations(fault)
    elif isinstance(error, dict):
        loc = error.get("loc")
        if isinstance(loc, list) and loc:
            parts = [str(part) for part in loc[:MAX_PARTS] if isinstance(part, str | int)]
            yield ".".join(parts)
        for name in ("error", "detail", "errors", "details", "message"):
            yield from _locations(unwrapped(error.get(name)))
        by_field = error.get("errors")
        for name, texts in by_field.items() if isinstance(by_field, dict) else ():
            if isinstance(texts, list):
                yield name


def _strings(value: Any) -> Iterator[str]:
    """Yield every string of a body, keys too, in order; data of a picture or file is left out."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            head = part.find(",") + 1 if part.startswith("data:") else 0
            yield part[:DATA_URL_HEAD] if head and _BASE64.fullmatch(part, head) else part
        elif isinstance(part, dict):
            for name, inner in reversed(part.items()):
                stack += [inner, name]
        elif isinstance(part, list):
            stack += reversed(part)


def _forms(text: str) -> Iterator[str]:
    """Yield a string as it is, and as a server may have decoded it."""
    yield text
    if "%" in text:
        raw = _PERCENT.sub(_percent_decoded, text.encode(errors="replace"))
        yield raw.decode(errors="replace")
    if "\\" in text:
        spaced = text.replace("\\n", " ").replace("\\r", " ").replace("\\t", " ")
        yield _ESCAPE.sub(lambda m: chr(int(m[1], 16)), spaced)
    if "&" in text:
        yield html.unescape(text)


def _percent_decoded(run: re.Match[bytes]) -> bytes:
    return bytes.fromhex(run[0].replace(b"%", b"").decode())
