"""The record of a session's calls in a gateway with two processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.servers.gateway import KEY, Gateway, toml_for
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts

from .late_signatures import assert_signature_returns

ROUTES = """
[[routes]]
model = "late"
targets = [{ upstream = "chat" }]
"""
HEADERS = {"x-api-key": KEY, "x-claude-code-session-id": "two-workers"}
REQUESTS = 16
"""Each has a connection of its own, so that both processes get some of them."""


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.on("late", upstream_scripts.late_signature())
        yield running


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_late_signature_of_one_worker_returns_by_all(upstream: ScriptedUpstream, tmp_path: Path):
    config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
    with Gateway(tmp_path / "gateway", config=config, workers=2) as gateway:
        assert_signature_returns(upstream, [gateway] * REQUESTS, HEADERS)
        assert (gateway.folder / "data" / "calls.sqlite3").stat().st_mode & 0o777 == 0o600
