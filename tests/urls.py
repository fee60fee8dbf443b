"""List the URL patterns of the project."""

from collections.abc import Iterable, Iterator

from django.urls import URLPattern, URLResolver


def url_routes(patterns: Iterable[URLPattern | URLResolver], above: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = above + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from url_routes(pattern.url_patterns, route)
        else:
            yield route
