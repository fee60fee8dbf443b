import pytest

from proxy.counters.backends import shared_store

from . import factories, session_factories


@pytest.fixture(autouse=True)
def budget_counters(settings, tmp_path):
    """Use new budget counters: the ids of budgets repeat, so counters of other tests would match."""
    shared_store.cache_clear()
    settings.DATA_DIR = tmp_path
    yield
    if shared_store.cache_info().currsize and hasattr(shared_store(), "close"):
        shared_store().close()
    shared_store.cache_clear()


@pytest.fixture
def root(client):
    """A client that is signed in as a superuser."""
    client.force_login(factories.superuser())
    return client


@pytest.fixture
def rows():
    """The rows of a session."""
    factories.price()
    return session_factories.session(factories.NOON, key_id=factories.key("ci")[0].pk)
