import pytest

from tests.proxy.admin import cast


@pytest.fixture
def ask(client):
    """A report of finance's, by its route."""
    secret = cast.key("finance", scopes=["admin"])[1]

    def ask(route, **query):
        return client.get(f"/api/v1/{route}/", query, headers={"x-api-key": secret})

    return ask
