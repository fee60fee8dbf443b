"""A database that is damaged or away is answered with 503 and retry-after, by the API and pages."""

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connection

from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def root():
    client = ServedClient(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("root"))
    return client


FAULTS = [
    DatabaseError("database disk image is malformed"),
    OperationalError("disk I/O error"),
    OperationalError('connection to server at "127.0.0.1", port 5432 failed: Connection refused'),
    InterfaceError("connection already closed"),
]
API = ["requests/", "usage/", "keys/", "teams/", "audit/"]
PAGES = ["", "proxy/exchange/", "sessions/", "proxy/apikey/", "proxy/team/"]


def failing(fault, tables=("proxy_",)):
    def execute(run, sql, params, many, context):
        if any(table in sql for table in tables):
            raise fault
        return run(sql, params, many, context)

    return connection.execute_wrapper(execute)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault)[:20])
@pytest.mark.parametrize("path", API)
def test_a_report_answers_503_with_our_error_and_retry_after(fault, path):
    secret = factories.key("finance", scopes=["admin"])[1]
    client = ServedClient()

    with failing(fault):
        response = client.get(f"/api/v1/{path}", headers={"x-api-key": secret})

    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "overloaded_error"
    assert body["request_id"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault)[:20])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_answers_503_and_says_why(root, fault, path):
    with failing(fault):
        response = root.get(f"/admin/{path}")

    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert "The database cannot be read now" in response.content.decode()


@pytest.mark.parametrize("table", ["django_session", "auth_user"])
def test_a_page_whose_session_cannot_be_read_answers_503(root, table):
    with failing(FAULTS[0], (table,)):
        response = root.get("/admin/")

    assert response.status_code == 503


def test_an_error_of_a_query_stays_a_500():
    secret = factories.key("finance", scopes=["admin"])[1]

    with failing(IntegrityError("UNIQUE constraint failed"), ("proxy_exchange",)):
        response = ServedClient().get("/api/v1/requests/", headers={"x-api-key": secret})

    assert response.status_code == 500
