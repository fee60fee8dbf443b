"""The tables of responses: URL -> method -> one word for each role or each scope."""

import functools
import os
from itertools import groupby
from pathlib import Path

from django.urls import get_resolver

from proxy.routing import EXACT_PATHS
from tests.urls import url_routes

TABLE = Path(__file__).with_name("access_matrix.txt")
SCOPE_TABLE = Path(__file__).with_name("scope_matrix.txt")
WRITING = bool(os.environ.get("BRIDGE_WRITE_MATRIX"))  # fills the table instead of comparing
METHODS = ("GET", "POST", "PUT", "DELETE")
OPEN = {
    "admin/login/", "admin/jsi18n/", "api/v1/schema/", "api/v1/docs/", "/", "/healthz", "/readyz",
    "/metrics", "/api/hello",
}  # fmt: skip
"""URLs that anonymous clients may read; they contain nothing about users."""


@functools.cache
def rows(table=TABLE):
    """Return a table: URL -> method -> one word for each role or scope."""
    lines = [line.split() for line in table.read_text().splitlines() if line and line[0] != "#"]
    return {
        url: {method: tuple(words) for _, method, *words in of_url}
        for url, of_url in groupby(lines, key=lambda line: line[0])
    }


DJANGO = list(dict.fromkeys(url_routes(get_resolver("bridge_project.urls").url_patterns)))
GATEWAY = [*EXACT_PATHS, "/v1/models/claude-sonnet-5", "/v1/nowhere"]
"""URLs that the gateway answers before Django is called."""

REST = [url for url in DJANGO if url.startswith(("api/v1/", "v1/organizations/"))]
REST = [url for url in REST if f"{url}/" not in DJANGO]
"""URLs of the API; of two spellings of a path, the one with the last slash."""


def compare(url, found, callers, table=TABLE):
    """Compare the words of a URL (method -> caller -> word) with its rows; ``callers`` has all."""
    if WRITING:
        if url not in rows(table):
            with table.open("a") as file:
                file.writelines(
                    f"{url} {method} {' '.join(words.values())}\n"
                    for method, words in found.items()
                )
        return
    row = rows(table)[url]
    expected = {method: dict(zip(callers, row[method], strict=True)) for method in found}
    assert (url, found) == (
        url,
        {method: {one: expected[method][one] for one in words} for method, words in found.items()},
    )
