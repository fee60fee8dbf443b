"""Cross-origin requests (CORS) of pages in a browser, to the paths that need a gateway key.

A page of any origin may send requests, as Anthropic's API allows for clients with
``anthropic-dangerous-direct-browser-access``. That gives a page nothing it did not have: these
paths accept only a key in a header, never a cookie, so a browser adds no authority of its user.
Without ``access-control-allow-credentials``, a browser sends no cookies either. Source: Fetch
standard, "CORS protocol".
"""

from collections.abc import Mapping
from typing import Final

ORIGIN: Final = b"origin"
PREFLIGHT: Final = b"access-control-request-method"
ALLOW_ORIGIN: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"*"),
)
"""The headers of every response to a page, errors included: without them it could not read it."""
MAX_AGE_S: Final = 7_200  # no browser keeps the answer longer


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser asks if a page may send the request that follows."""
    return method == "OPTIONS" and ORIGIN in headers and PREFLIGHT in headers


def preflight_headers(methods: tuple[str, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of the answer, besides ``ALLOW_ORIGIN``."""
    return (
        (b"access-control-allow-methods", ", ".join(methods).encode()),
        (b"access-control-allow-headers", b"*, authorization"),  # "*" excludes this one
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
    )
