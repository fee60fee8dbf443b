"""Fixtures: a gateway with a team that has budgets."""

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from proxy.gateway.admission.budget_maintenance import budget_maintenance
from proxy.gateway.admission.rate_limits import SharedLimiter, shared_limiter, shared_limiters
from proxy.live.running_requests import RUNNING
from proxy.models import Budget, Price
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway.budget_fixtures import BudgetTeam, settled_cost
from tests.proxy.gateway.conftest import message
from tests.proxy.gateway.http_client import GatewayClient, Reply, read_until

numbers = itertools.count()


class BudgetGateway:
    """A gateway, its upstream, and a team whose budgets are its own."""

    def __init__(
        self, gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, reload
    ) -> None:
        self.gateway, self.scripted, self.cleo, self.reload = gateway, scripted, cleo, reload

    def model(self, dialect: str) -> str:
        """Return a new model name, priced at each upstream: 1 and 10 dollars a million.

        The gateway knows the price from the next budget of the team on.
        """
        name = f"{dialect}-hard-{next(numbers)}"
        since = datetime(2026, 1, 1, tzinfo=UTC).date()
        Price.objects.create(model=name, since=since, input=1, output=10)
        return name

    def send(self, name: str, **fields) -> Reply:
        return self.gateway.post(message(name, **fields), x_api_key=self.cleo.secret)

    def disconnect(self, name: str, until: bytes = b"", **fields) -> None:
        """Send, read up to ``until``, disconnect; return when the gateway has noticed it."""
        with self.gateway.open(message(name, **fields), x_api_key=self.cleo.secret) as client:
            if until:
                read_until(client, until)
            else:
                self.scripted.wait_until(lambda seen: any(one.model == name for one in seen))
            request = next(one for one in RUNNING.values() if one.model == name)
        deadline = time.monotonic() + 60
        while request.response.bytes_at_disconnect is None and request.head.request_id in RUNNING:
            assert time.monotonic() < deadline, "the gateway did not notice the disconnect"
            time.sleep(0.005)

    def charged(self, budget: Budget) -> int:
        return settled_cost(budget, team=self.cleo.team.name)


@pytest.fixture
def budget_gateway(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, reload
) -> BudgetGateway:
    return BudgetGateway(gateway, scripted, cleo, reload)


@pytest.fixture
def no_new_counters(gateway: GatewayClient):
    """Stop the thread that creates the counter of a new budget within two seconds."""
    budget_maintenance.stop()
    yield
    budget_maintenance.start()


@pytest.fixture
def several_workers(gateway: GatewayClient, settings) -> Iterator[SharedLimiter]:
    """Let the gateway share its limits, as with two workers; its limiter."""
    settings.WORKERS = 2
    limiter = shared_limiter()
    assert limiter is not None
    yield limiter
    settings.WORKERS = 1
    shared_limiters.clear()
    budget_maintenance.renewals.clear()
