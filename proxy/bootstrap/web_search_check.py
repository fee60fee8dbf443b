"""Check the search endpoint of ``web_search`` on translated routes."""

import asyncio
from collections.abc import Iterator
from typing import Final

from proxy.conf import conf
from proxy.gateway.web_search import search
from proxy.models.setup.upstreams import split_url
from proxy.url_hosts import host_error, is_private

from .finding import Finding

QUERY: Final = "Anthropic Messages API"
HINTS: Final = {
    "too_many_requests": "The endpoint limits its requests.",
    "unavailable": "See the log above, BRIDGE_WEB_SEARCH_FORMAT and BRIDGE_WEB_SEARCH_API_KEY; "
    "SearXNG answers with JSON only if its settings.yml lists the format json.",
}


def check_web_search() -> Iterator[Finding]:
    """Make one search, if an endpoint is set."""
    if not conf.web_search_url:
        return
    parts, host = split_url(conf.web_search_url)
    if parts.scheme == "http" and not is_private(host or ""):
        text = f"queries and the key are sent unencrypted to {host}"
        yield Finding("web search", ok=False, text=text, hint="Use https.")
    if error := host_error(host or ""):
        yield Finding("web search", ok=False, text=error, hint="Change BRIDGE_WEB_SEARCH_URL.")
        return
    found = asyncio.run(search(QUERY, {}))
    if isinstance(found, list):
        text = f"{host} returned {len(found)} results in the format {conf.web_search_format}"
        hint = "" if found else "Check BRIDGE_WEB_SEARCH_FORMAT."
        yield Finding("web search", ok=bool(found), text=text, hint=hint)
    else:
        code = found["error_code"]
        text = f"{host} returned no results: {code}"
        yield Finding("web search", ok=False, text=text, hint=HINTS.get(code, ""))
