"""Citations of web pages in text blocks."""

from typing import Any, Final

MAX_CITED_TEXT: Final = 1_000
"""Characters of a cited text that are sent. Anthropic sends at most 150; thousands of citations of
one long text would otherwise make a response of gigabytes. Source: Web search tool, "Citations"."""


def web_citation(url: Any, title: Any, cited_text: str) -> dict[str, Any]:
    """Return Anthropic's citation of a web search result. ``url`` and ``title`` may be any JSON."""
    return {
        "type": "web_search_result_location",
        "url": url if isinstance(url, str) else "",
        "title": title if isinstance(title, str) else None,
        "cited_text": cited_text[:MAX_CITED_TEXT],
        "encrypted_index": "",  # Anthropic's type requires the field; OpenAI has no such index
    }


def cite_annotation(annotation: dict[str, Any], text: str) -> dict[str, Any]:
    """Return Anthropic's citation for an ``url_citation`` annotation of ``text``."""
    start, end = annotation.get("start_index"), annotation.get("end_index")
    quoted = ""
    if isinstance(start, int) and isinstance(end, int):
        quoted = text[start:end] if start < 0 else text[start : min(end, start + MAX_CITED_TEXT)]
    return web_citation(annotation.get("url"), annotation.get("title"), quoted)
