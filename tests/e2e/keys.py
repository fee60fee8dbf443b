"""What a running gateway answers to a gateway key: itself, and both kinds of reports."""

import time
from typing import Final

from tests.fakes.gateway import Gateway

PATHS: Final = ("/v1/models", "/api/v1/me/", "/v1/organizations/me")
BOUND_S: Final = 60


def statuses(gateway: Gateway, secret: str) -> set[int]:
    """What the gateway and both kinds of reports answer to this secret."""
    headers = {"x-api-key": secret}
    return {gateway.ask("GET", path, None, headers, authorised=False).status for path in PATHS}


def until(true, complaint: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


def until_answered(gateway: Gateway, secret: str, status: int) -> None:
    """The gateway looks for changes each second; the reports see them at once."""
    until(lambda: statuses(gateway, secret) == {status}, f"never answered {status} everywhere")


def shell(gateway: Gateway, script: str) -> str:
    return gateway.manage("shell", "--verbosity", "0", "-c", script).strip()
