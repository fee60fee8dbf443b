"""Queries that the database stops, as it does when they exceed their time limit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection


@contextmanager
def stopped_queries(fragment: str) -> Iterator[list[str]]:
    """Stop each query that contains ``fragment``. Yield the list of these queries."""
    found: list[str] = []

    def stop(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if fragment not in sql:
            return execute(sql, *args)
        found.append(sql)
        raise OperationalError("interrupted")

    with connection.execute_wrapper(stop):
        yield found
