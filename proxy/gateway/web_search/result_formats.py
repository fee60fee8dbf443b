"""The APIs of search endpoints: parameters, headers, and the place of the results in a response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from translator.web_search.results import Block, search_result

TITLE_CHARACTERS: Final = 300
URL_CHARACTERS: Final = 2_000
TEXT_CHARACTERS: Final = 2_000
AGE_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFormat:
    """The API of a search endpoint, which answers a GET request with JSON."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the URL, besides ``q``, the query."""
    key_header: str
    """The header with the operator's key, and its value with ``{}`` in place of the key."""
    key_value: str
    path: Sequence[str]
    """The fields that lead to the list of results."""
    text_field: str
    age_field: str


FORMATS: Final[Mapping[str, ResultFormat]] = {
    "brave": ResultFormat(
        key_header="x-subscription-token",
        key_value="{}",
        path=("web", "results"),
        text_field="description",
        age_field="page_age",
    ),
    "searxng": ResultFormat(
        parameters={"format": "json"},
        key_header="authorization",
        key_value="Bearer {}",
        path=("results",),
        text_field="content",
        age_field="publishedDate",
    ),
}
"""By the value of BRIDGE_WEB_SEARCH_FORMAT. ``searxng`` without a key sends no such header."""


def read_results(
    response: Any, result_format: ResultFormat, tool: Mapping[str, Any], maximum: int
) -> list[Block]:
    """Return at most ``maximum`` results of a decoded response, on the sites that ``tool`` permits.

    Their texts come from the web, so nothing in them is trusted, and their length is limited.
    """
    found = response
    for name in result_format.path:
        found = found.get(name) if isinstance(found, dict) else None
    results: list[Block] = []
    for entry in found if isinstance(found, list) else ():
        if len(results) == maximum:
            break
        url = entry.get("url") if isinstance(entry, dict) else None
        if not isinstance(url, str) or len(url) > URL_CHARACTERS or not is_permitted(url, tool):
            continue
        results.append(
            search_result(
                url=url,
                title=_text(entry, "title", TITLE_CHARACTERS) or url,
                text=_text(entry, result_format.text_field, TEXT_CHARACTERS),
                page_age=_text(entry, result_format.age_field, AGE_CHARACTERS) or None,
            )
        )
    return results


def is_permitted(url: str, tool: Mapping[str, Any]) -> bool:
    """Return whether the tool's ``allowed_domains`` and ``blocked_domains`` permit a web page."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = (parts.hostname or "").rstrip(".").lower()
    if parts.scheme not in ("http", "https") or not host:
        return False
    allowed, blocked = tool.get("allowed_domains"), tool.get("blocked_domains")
    if allowed and not any(_is_within(host, parts.path, site) for site in allowed):
        return False
    return not any(_is_within(host, parts.path, site) for site in blocked or ())


def _is_within(host: str, path: str, site: str) -> bool:
    """Return whether a page belongs to a site: a domain, its subdomains, perhaps below a path."""
    domain, _, folder = site.lower().strip("/").partition("/")
    in_folder = not folder or f"{path.lower()}/".startswith(f"/{folder}/")
    return in_folder and (host == domain or host.endswith(f".{domain}"))


def _text(entry: Mapping[str, Any], name: str, characters: int) -> str:
    value = entry.get(name)
    return value[:characters].strip() if isinstance(value, str) else ""
