import pytest
from django.core.cache import cache

from bridge_project.asgi import application
from tests.fakes.served_client import ServedClient
from tests.proxy.admin import cast
from tests.proxy.config.served import served


@pytest.fixture
def client():
    """In place of Django's: each request passes the router, as a client's does."""
    return ServedClient()


@pytest.fixture(autouse=True)
def unthrottled():
    """Rows roll back, so that each test's first key has the same id: the throttle would add up all."""
    cache.clear()


@pytest.fixture
def ask(client):
    """A report of finance's, by its route."""
    secret = cast.key("finance", scopes=["admin"])[1]

    def ask(route, **query):
        return client.get(f"/api/v1/{route}/", query, headers={"x-api-key": secret})

    return ask


@pytest.fixture
def served_url(transactional_db):
    """Where another process reaches this test's database: our server, in a thread."""
    with served(application) as (port, _):
        yield f"http://127.0.0.1:{port}"
