"""Truncate stored texts to a size that a page can show, and make all characters printable."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from proxy.ledger.transcripts.visible_text import show_invisible

from .markdown import MarkdownPage

BLOCK_CHARS: Final = 16 * 1024  # characters; limit of one content block on the page
PAGE_CHARS: Final = 256 * 1024  # characters; limit of all blocks of a page
FOLD_CHARS: Final = 2 * 1024  # longer tool results are collapsed at first
JSON_NODES: Final = 4000  # a JSON value with more nodes is not indented


@dataclass(frozen=True, slots=True)
class TruncatedText:
    """The beginning of a text. ``size`` is the number of characters of the whole text."""

    shown: str = ""
    size: int = 0
    markdown: MarkdownPage | None = None
    """The page with whose texts this text is rendered; None if it is shown raw."""
    raw: str = ""
    """The text that was added to ``markdown``."""

    @property
    def html(self) -> str:
        """The whole text as safe HTML; empty if the text is shown raw."""
        return self.markdown.html(self.raw) if self.markdown else ""

    @property
    def is_truncated(self) -> bool:
        return len(self.shown) < self.size

    @property
    def is_long(self) -> bool:
        return self.size > FOLD_CHARS

    @property
    def size_text(self) -> str:
        return "1 character" if self.size == 1 else f"{self.size:,} characters"


def printable(text: str) -> str:
    """Return the text with visible invisible characters and escaped unpaired surrogates.

    JSON strings may contain unpaired surrogates, but UTF-8 cannot encode them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="backslashreplace").decode()
    return show_invisible(text)


def as_text(value: Any) -> str:
    """Return a JSON value as text: a string unchanged, None as "", any other value as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else dump_json(value)


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Return readable JSON; for a value nested too deep for the encoder, return a message."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except (RecursionError, ValueError):
        return "(nested too deep to be shown; download the body)"


def json_prefix(value: Any, max_chars: int) -> tuple[str, bool]:
    """Return the first ``max_chars`` characters of the indented JSON, and whether there is more.

    The encoder stops after ``max_chars``: encoding all of 30 MB would take half a second.
    """
    pieces: list[str] = []
    encoder = json.JSONEncoder(ensure_ascii=False, indent=2, default=str)
    try:
        for piece in encoder.iterencode(value):
            pieces.append(piece[: max_chars + 1])
            max_chars -= len(piece)
            if max_chars < 0:
                return printable("".join(pieces)), True
    except (RecursionError, ValueError):
        pieces.append("\n(nested too deep to be shown; download the body)")
    return printable("".join(pieces)), False


def size_of_base64(encoded: str) -> int:
    """Return the number of bytes that a base64 text encodes, without decoding the text."""
    return max(0, len(encoded) * 3 // 4 - encoded[-2:].count("="))


class Truncator:
    """Truncate the texts of a page. After the page limit, texts are empty but keep their size.

    With ``render_markdown``, the Markdown of whole texts is rendered, within the limits of a page.
    """

    def __init__(self, max_chars: int = PAGE_CHARS, *, render_markdown: bool = False) -> None:
        self.remaining = max_chars
        self._markdown = MarkdownPage() if render_markdown else None

    def truncate_text(self, text: str) -> TruncatedText:
        head = text[: max(0, min(BLOCK_CHARS, self.remaining))]
        self.remaining -= len(head)
        shown = printable(head)
        return TruncatedText(shown, len(shown) + len(text) - len(head))

    def truncate_markdown(self, text: str) -> TruncatedText:
        """Return the truncated text; if it is whole, its Markdown is rendered with the page's."""
        truncated = self.truncate_text(text)
        if self._markdown is None or truncated.is_truncated:
            return truncated
        self._markdown.add(text)
        return replace(truncated, markdown=self._markdown, raw=text)

    def truncate_json(self, value: Any) -> TruncatedText:
        """Return truncated JSON; a large value is not indented, because that takes a second."""
        pretty = dump_json(value, indent=2 if _is_small(value) else None)
        return self.truncate_text(pretty)


def _is_small(value: Any) -> bool:
    """Whether a JSON value has fewer than ``JSON_NODES`` nodes."""
    left = JSON_NODES
    waiting = [value]
    while waiting and left > 0:
        node = waiting.pop()
        left -= 1
        if isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node[: left + 1])
    return left > 0
