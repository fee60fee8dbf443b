import pytest
from django.core.cache import cache

from bridge_project.asgi import application
from tests.fakes.module_rows import module_rows
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories
from tests.proxy.config.server_fixtures import served

__all__ = ["module_rows"]  # a fixture


@pytest.fixture
def client():
    """Replace Django's client: each request passes through the gateway's router."""
    return ServedClient()


@pytest.fixture(autouse=True)
def unthrottled():
    """Clear the throttle. Rows roll back, so the first key of each test has the same id."""
    cache.clear()


@pytest.fixture
def get_report(client):
    """Send GET /api/v1/<route>/ with an admin key and return the response."""
    secret = factories.key("finance", scopes=["admin"])[1]

    def get_report(route, **query):
        return client.get(f"/api/v1/{route}/", query, headers={"x-api-key": secret})

    return get_report


@pytest.fixture
def served_url(transactional_db):
    """The URL of a server thread on this test's database, for other processes."""
    with served(application) as (port, _):
        yield f"http://127.0.0.1:{port}"
