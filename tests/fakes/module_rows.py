"""Rows that several tests or cases share: written once, and what a case changes is undone."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import transaction


@contextmanager
def undone() -> Iterator[None]:
    """Undo the writes of the block, so that the cases of a test share the rows made before it."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def module_rows(
    django_db_setup: None, django_db_blocker: pytest.FixtureRequest
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Return the context in which a fixture of the module writes its rows.

    They are written in a transaction around the transactions of the tests, so each test undoes only
    its own writes. A module whose tests need a database without a transaction cannot use it.
    """
    around = transaction.atomic()
    with django_db_blocker.unblock():
        around.__enter__()
    yield django_db_blocker.unblock
    with django_db_blocker.unblock():
        transaction.set_rollback(True)
        around.__exit__(None, None, None)
