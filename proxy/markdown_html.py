"""Render Markdown from clients and models as HTML that is safe on the admin's pages. No I/O.

Runs only in a child process (``proxy.limited_work``): 8 KB of spaces hold a lexer for 10 to 26 s,
and 48 KB of brackets the parser for 2 s.

Three layers: the parser treats HTML as text, the renderer below replaces links and images by their
text and target, and nh3 removes every element, attribute and class that is not in the lists here.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from io import StringIO
from typing import Any, Final

import nh3
from django.utils.html import escape
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES

MAX_CODE_CHARS: Final = 8 * 1024
"""Longer code blocks are not highlighted: their HTML can be thirty times as long as the code."""
MAX_CELLS: Final = 4000
"""Texts whose tables could have more cells are shown raw: a row may omit cells, which are added."""
MAX_NESTING: Final = 20
CODE_PREFIX: Final = "mb-hl-"
LANGUAGES: Final[Mapping[str, str]] = {
    name: lexer
    for lexer, names in {
        "bash": "bash sh shell zsh",
        "c": "c h",
        "cpp": "cpp c++ cc hpp",
        "csharp": "csharp cs c#",
        "css": "css",
        "diff": "diff patch",
        "docker": "docker dockerfile",
        "go": "go golang",
        "html": "html",
        "ini": "ini cfg",
        "java": "java",
        "javascript": "javascript js jsx",
        "json": "json jsonc",
        "kotlin": "kotlin",
        "make": "make makefile",
        "php": "php",
        "console": "console shell-session",
        "python": "python py python3",
        "pytb": "pytb traceback",
        "ruby": "ruby rb",
        "rust": "rust rs",
        "sql": "sql",
        "swift": "swift",
        "toml": "toml",
        "typescript": "typescript ts tsx",
        "xml": "xml svg",
        "yaml": "yaml yml",
    }.items()
    for name in names.split()
}
"""The names of a code block's language, and their lexer; other code is not highlighted."""
TEXT_TAGS: Final = {"p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "s", "blockquote"}
OTHER_TAGS: Final = {"ol", "ul", "li", "pre", "code", "span", "div"}
TABLE_TAGS: Final = {"table", "thead", "tbody", "tr", "th", "td"}
TAGS: Final = frozenset(TEXT_TAGS | OTHER_TAGS | TABLE_TAGS)
CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "div": frozenset({"mb-md-scroll"}),
    "pre": frozenset({"mb-code"}),
    "table": frozenset({"mb-md-table"}),
    "th": frozenset({"mb-md-center", "mb-md-right"}),
    "td": frozenset({"mb-md-center", "mb-md-right"}),
    "span": frozenset({"mb-target"})
    | {CODE_PREFIX + name for name in STANDARD_TYPES.values() if name},
}
HEADINGS: Final = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
"""The page's own headings are h1 and h2, so those of a text begin at h3."""
Env = MutableMapping[str, Any]


def to_html(markdown: bytes) -> bytes:
    """Return the Markdown as HTML; b"" if its tables are too large, so that it is shown raw."""
    text = markdown.decode()
    if _table_cells(text) > MAX_CELLS:
        return b""
    html = nh3.clean(
        str(_parser().render(text)),
        tags=set(TAGS),
        attributes={"div": {"tabindex"}},  # of a wide table: the keyboard scrolls it
        allowed_classes={tag: set(names) for tag, names in CLASSES.items()},
        link_rel=None,
    )
    return html.encode()


def _table_cells(text: str) -> int:
    """Return the largest number of cells that the tables of the text can have."""
    pipes = [count for line in text.split("\n") if (count := line.count("|"))]
    return len(pipes) * max(pipes, default=0)


@cache
def _parser() -> MarkdownIt:
    """Return the parser: tables and strikethrough as on GitHub, and each line break is kept."""
    options = {"html": False, "breaks": True, "maxNesting": MAX_NESTING}
    return MarkdownIt("commonmark", options, renderer_cls=SafeRenderer).enable(
        ["table", "strikethrough"]
    )


class SafeRenderer(RendererHTML):
    """Renders tokens without any attribute except classes of this project."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        env.setdefault("links", []).append((idx, str(tokens[idx].attrGet("href") or "")))
        return ""

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        """Return the target after the link's text, unless the text is the target."""
        start, target = env["links"].pop()
        text = "".join(token.content for token in tokens[start + 1 : idx])
        return "" if text == target else _target(target)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        return f"{escape(tokens[idx].content)}{_target(str(tokens[idx].attrGet('src') or ''))}"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        return f"<{HEADINGS[tokens[idx].tag]}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        return f"</{HEADINGS[tokens[idx].tag]}>\n"

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        return '<div class="mb-md-scroll" tabindex="0"><table class="mb-md-table">'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        """Return a cell with its alignment as a class: the CSP blocks the ``style`` attribute."""
        _, _, side = str(tokens[idx].attrGet("style") or "").partition(":")
        css = f' class="mb-md-{side}"' if side in {"center", "right"} else ""
        return f"<{tokens[idx].tag}{css}>"

    td_open = th_open

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        language = tokens[idx].info.strip().split(" ")[0].lower()
        return _code(tokens[idx].content, language)

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Env) -> str:
        return _code(tokens[idx].content, "")


def _target(target: str) -> str:
    return f' <span class="mb-target">({escape(target)})</span>' if target else ""


def _code(text: str, language: str) -> str:
    html = ""
    if language in LANGUAGES and len(text) <= MAX_CODE_CHARS:
        output = StringIO()
        FORMATTER.format(_lexer(LANGUAGES[language]).get_tokens(text), output)
        html = output.getvalue()
    return f'<pre class="mb-code">{html or escape(text)}</pre>\n'


FORMATTER: Final = HtmlFormatter(nowrap=True, classprefix=CODE_PREFIX)


@cache
def _lexer(name: str) -> Lexer:
    return get_lexer_by_name(name, stripnl=False)
