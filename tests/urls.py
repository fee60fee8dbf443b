"""Every path that Django answers, as its patterns say it."""

from collections.abc import Iterable, Iterator

from django.urls import URLPattern, URLResolver


def routes(patterns: Iterable[URLPattern | URLResolver], above: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = above + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, route)
        else:
            yield route
