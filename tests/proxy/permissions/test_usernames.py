"""A name is taken if a user has it, or the ledger knows it; no query scans the requests."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from proxy.models import Exchange
from proxy.permissions.usernames import is_taken
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


def test_names_of_users_and_of_the_ledger_are_taken() -> None:
    factories.staff("ada")
    factories.record(opening={"user": "gone"})
    factories.record(at=factories.NOON.replace(hour=13), closed=False, opening={"user": "running"})

    taken = {name: is_taken(name) for name in ("ADA", "root", "gone", "running", "new")}

    assert taken == {"ADA": True, "root": True, "gone": True, "running": True, "new": False}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads the plans of SQLite")
def test_no_query_scans_the_requests_or_their_sums() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert not is_taken("new")

    tables = (Exchange._meta.db_table, "proxy_usagebycallerday")
    plans = []
    with connection.cursor() as cursor:
        for query in queries.captured_queries:
            if any(table in query["sql"] for table in tables):
                cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
                plans += [row[-1] for row in cursor.fetchall()]
    assert len(plans) == 2
    assert [plan for plan in plans if not plan.startswith("SEARCH")] == []
