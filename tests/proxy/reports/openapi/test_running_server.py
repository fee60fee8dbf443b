"""5,000 random requests to ``manage.py serve`` over HTTP: no 5xx, and each response as documented."""

import json
import math
import time
import traceback

import pytest

from tests.fakes.openapi_operations import OPERATIONS
from tests.fakes.servers.gateway import TEAM, Gateway
from tests.lanes import repeat

from .cases import check_operation

pytestmark = pytest.mark.slow

CASES = repeat(fast=500, slow=5_000, variable="BRIDGE_SCHEMA_CASES")
SEED = f"""
import json
from tests.proxy.reports.openapi.seed import seed_ledger, seed_objects
shared = seed_ledger()
paths = {[operation.path for operation in OPERATIONS.values()]}
print(json.dumps([seed_objects(shared, path, number) for number, path in enumerate(paths)]))
"""


@pytest.mark.timeout(7200)
def test_every_response_of_a_running_gateway_matches_the_schema(tmp_path):
    with Gateway(tmp_path / "gateway", config=TEAM) as gateway:
        seeded = json.loads(gateway.manage("shell", "--verbosity", "0", "-c", SEED))
        _wait_until_known(gateway, seeded[-1])
        failures = {}
        for number, (name, operation) in enumerate(OPERATIONS.items()):
            cases = math.ceil(CASES / len(OPERATIONS))
            try:
                check_operation(operation, seeded[number], cases, base_url=gateway.url)
            except Exception as failure:  # noqa: BLE001 -- report all at once
                failures[name] = "".join(traceback.format_exception_only(failure))
        assert not failures, "\n\n".join(f"{name}: {text}" for name, text in failures.items())
        assert "Traceback" not in gateway.log, gateway.log


def _wait_until_known(gateway, objects):
    """Wait until the gateway has loaded the keys and routes of the seed."""
    path = "/api/v1/me/dry-run/?model=claude-opus-5-5&input_tokens=1&max_tokens=1"
    headers = {"x-api-key": objects["secrets"]["messages"]}
    deadline = time.monotonic() + 60
    while gateway.request("GET", path, headers=headers, authorized=False).status != 200:
        assert time.monotonic() < deadline, gateway.log
        time.sleep(0.2)
