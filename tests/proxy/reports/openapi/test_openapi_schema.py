"""Responses to random valid and invalid requests match the OpenAPI document.

The slow lane sends more cases to a running gateway: see test_running_server.
"""

import pytest

from proxy.reports.exports import jobs
from tests.fakes.caches import NO_CACHE
from tests.fakes.openapi_operations import OPERATIONS
from tests.fakes.servers.served_client import as_wsgi
from tests.lanes import repeat
from tests.proxy.reports.live_server import gateway_snapshot

from .cases import check_operation
from .seed import seed_ledger, seed_objects

CASES_PER_OPERATION = repeat(fast=2, slow=10)


@pytest.fixture(scope="module")
def shared(module_rows):
    """The names of what every operation uses."""
    with module_rows():
        return seed_ledger()


@pytest.fixture
def seeded(shared, settings, tmp_path, name):
    # The test sends more than 600 requests a minute; without a cache, they are not counted.
    settings.CACHES = NO_CACHE
    settings.DATA_DIR = tmp_path
    objects = seed_objects(shared, OPERATIONS[name].path)
    with gateway_snapshot():
        yield objects
    jobs.runner.join()


@pytest.mark.repeated
@pytest.mark.django_db
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_response_matches_the_schema(seeded, name):
    check_operation(OPERATIONS[name], seeded, CASES_PER_OPERATION, app=as_wsgi)
