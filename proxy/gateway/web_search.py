"""Search the web with the endpoint that the operator set (BRIDGE_WEB_SEARCH_URL).

Only this endpoint is called: no address from a request or from a result is ever fetched, and no
redirect is followed.
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings

from proxy.conf import conf
from proxy.secrets import setting_now
from translator.errors import BadUpstream
from translator.web_search.request import search_tool
from translator.web_search.results import Block, search_error, search_result

from .http.lenient_json import decode_json

log = logging.getLogger("proxy.gateway")

MAX_QUERY_CHARACTERS: Final = 1_000
MAX_RESPONSE_BYTES: Final = 2**20
MAX_CALLS: Final = 10
"""The most calls of the upstream that follow the first one for one message, as Anthropic's loop."""
RESULT_TOKENS: Final = 4_096
"""Assumed for the results of one search, for budgets."""
TITLE_CHARACTERS: Final = 300
URL_CHARACTERS: Final = 2_000
TEXT_CHARACTERS: Final = 2_000
AGE_CHARACTERS: Final = 100


class SearchFailed(Exception):
    """A search failed; the message is one of Anthropic's error codes."""


async def search(query: Any, tool: Mapping[str, Any]) -> list[Block] | Block:
    """Return the results of a search, or the error block that the client and the model get."""
    if not isinstance(query, str) or not query.strip():
        return search_error("invalid_tool_input")
    if len(query) > MAX_QUERY_CHARACTERS:
        return search_error("query_too_long")
    result_format = FORMATS[conf.web_search_format]
    try:
        async with asyncio.timeout(conf.web_search_timeout_s):
            response = decode_json(await _fetch(query))
    except TimeoutError:
        log.warning("web search: no response within %g seconds", conf.web_search_timeout_s)
        return search_error("unavailable")
    except BadUpstream:
        log.warning("web search: the endpoint did not answer with JSON")
        return search_error("unavailable")
    except SearchFailed as exc:
        return search_error(str(exc))
    return read_results(response, result_format, tool, conf.web_search_max_results)


def further_calls(request: dict[str, Any]) -> int:
    """Return how many calls of the upstream may follow the first one, to continue after searches.

    One call more than ``max_uses``, so that the model can go on after the error
    ``max_uses_exceeded``.
    """
    tool = search_tool(request) if conf.web_search_url else None
    if tool is None:
        return 0
    return min(MAX_CALLS, (tool.get("max_uses") or MAX_CALLS) + 1)


def worst_case_input(request: dict[str, Any], input_tokens: int, max_tokens: int) -> int:
    """Return the most input tokens of a request: each call repeats the response and the results."""
    calls = further_calls(request)
    if not calls:
        return input_tokens
    results = RESULT_TOKENS * calls * (calls + 1) // 2
    return (calls + 1) * input_tokens + calls * max_tokens + results


async def _fetch(query: str) -> bytes:
    import httpx  # noqa: PLC0415 - the import takes a tenth of the start time, and few installations search

    result_format = FORMATS[conf.web_search_format]
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    headers["user-agent"] = "messages-bridge"
    if key := setting_now("BRIDGE_WEB_SEARCH_API_KEY", settings.WEB_SEARCH_API_KEY):
        headers[result_format.key_header] = result_format.key_value.format(key)
    url = httpx.URL(conf.web_search_url).copy_merge_params({"q": query, **result_format.parameters})
    content = b""
    try:
        async with (
            httpx.AsyncClient(
                verify=_tls(), timeout=conf.web_search_timeout_s, follow_redirects=False
            ) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            if response.status_code != 200:
                log.warning("web search: the endpoint answered with %d", response.status_code)
                busy = response.status_code == 429
                raise SearchFailed("too_many_requests" if busy else "unavailable")
            async for part in response.aiter_raw():
                content += part
                if len(content) > MAX_RESPONSE_BYTES:
                    log.warning("web search: the response exceeds %d bytes", MAX_RESPONSE_BYTES)
                    raise SearchFailed("unavailable")
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        log.warning("web search: %s", type(exc).__name__)
        raise SearchFailed("unavailable") from None
    return content


@cache
def _tls() -> ssl.SSLContext:
    """Return the one TLS context of this process, because making one takes 20 ms."""
    return ssl.create_default_context()


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
