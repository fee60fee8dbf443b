"""The Markdown texts of one page as HTML, rendered in a child process within limits."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from django.utils.safestring import mark_safe

from proxy.ledger.transcripts.visible_text import show_invisible
from proxy.limited_work import FunctionRaised, LimitExceeded, Limits, WorkFailed, run_each_limited

MAX_CHARS: Final = 48 * 1024
"""Characters of a page that are rendered; the texts after them are shown raw."""
LIMITS: Final = Limits(wall_s=3.0, cpu_s=1.0)
"""Limits of all texts of a page together."""
MAX_REMEMBERED: Final = 1000
_shown_raw: Final[dict[bytes, None]] = {}
"""Digests of texts that could not be rendered once, oldest first; they are not tried again."""


class MarkdownPage:
    """The texts of a page, which are rendered together when the HTML of the first is needed."""

    def __init__(self) -> None:
        self._remaining_chars = MAX_CHARS
        self._html: dict[str, str] | None = None
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        """Let the text be rendered, if the page has not reached its limit."""
        self._remaining_chars -= len(text)
        if self._remaining_chars >= 0:
            self._texts.append(text)

    def html(self, text: str) -> str:
        """Return a text that was added as HTML; "" if it is to be shown raw."""
        if self._html is None:
            self._html = dict(_render(self._texts))
        return self._html.get(text, "")


def _render(texts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each text that could be rendered, and its HTML."""
    items = {text: text.encode(errors="backslashreplace") for text in texts}
    tried = [text for text, item in items.items() if sha256(item).digest() not in _shown_raw]
    if not tried:
        return
    try:
        results = run_each_limited(
            "proxy.markdown_html:to_html", [items[text] for text in tried], LIMITS
        )
    except WorkFailed as failure:
        results = failure.results
        if isinstance(failure, LimitExceeded | FunctionRaised) and len(results) < len(tried):
            _show_raw(items[tried[len(results)]])
    for text, html in zip(tried, results, strict=False):  # after a failure, the others are raw
        yield text, mark_safe(show_invisible(html.decode()))  # noqa: S308  # nosec B308, B703  # nh3 cleaned it


def _show_raw(item: bytes) -> None:
    _shown_raw[sha256(item).digest()] = None
    while len(_shown_raw) > MAX_REMEMBERED:
        _shown_raw.pop(next(iter(_shown_raw), b""), None)
