"""One gateway, one scripted upstream and one run of each SDK for all end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.upstream import ScriptedUpstream

from . import scenarios

CAPABLE = {"files": True, "prefill": True}
"""Capabilities in addition to the profile ``generic``, for PDFs and prefilled responses in recordings."""


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[ScriptedUpstream]:
    """The scripted upstream of the session's gateway, with a script for every recording."""
    with ScriptedUpstream() as running:
        running.choose(scenarios.script_for)
        yield running


@pytest.fixture(scope="session")
def gateway(
    shared_upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """``manage.py serve`` with ``shared_upstream`` as its upstream."""
    upstreams = {
        "responses": {
            "dialect": "responses",
            "base_url": shared_upstream.base_url,
            "profile": "openai",
        },
        "chat": {"dialect": "chat", "base_url": shared_upstream.base_url, "capabilities": CAPABLE},
        "anthropic": {
            "dialect": "anthropic",
            "base_url": shared_upstream.url,
            "profile": "anthropic",
        },
    }
    config = toml_for(upstreams, scenarios.ROUTES)
    with Gateway(tmp_path_factory.mktemp("gateway"), config=config) as running:
        yield running
