"""Requests with a gateway key to a running gateway and to both kinds of reports."""

from typing import Final

from tests.fakes.servers.gateway import Gateway
from tests.waiting import until

PATHS: Final = ("/v1/models", "/api/v1/me/", "/v1/organizations/me")


def statuses(gateway: Gateway, secret: str) -> set[int]:
    """Return the statuses of the gateway and of both kinds of reports for this secret."""
    headers = {"x-api-key": secret}
    return {gateway.request("GET", path, None, headers, authorized=False).status for path in PATHS}


def until_status(gateway: Gateway, secret: str, status: int) -> None:
    """Wait until all endpoints return this status; the gateway reads changes each second."""
    until(lambda: statuses(gateway, secret) == {status}, f"not all endpoints returned {status}")


def shell(gateway: Gateway, script: str) -> str:
    return gateway.manage("shell", "--verbosity", "0", "-c", script).strip()
