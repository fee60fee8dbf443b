import pytest

from . import cast, session_cast


@pytest.fixture
def root(client):
    """A superuser's browser."""
    client.force_login(cast.superuser())
    return client


@pytest.fixture
def rows():
    """A session's."""
    cast.price()
    return session_cast.session(cast.NOON, key_name="ci")
