"""One gateway, one scripted upstream and one run of each SDK for all end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.upstream import ScriptedUpstream

from . import plays

CAPABLE = {"files": True, "prefill": True}
"""Beside the profile ``generic``: recorded requests hold PDFs and prefilled answers."""


@pytest.fixture(scope="session")
def player() -> Iterator[ScriptedUpstream]:
    """The scripted upstream behind the session's gateway; it knows every recording."""
    with ScriptedUpstream() as running:
        running.choose(plays.script_for)
        yield running


@pytest.fixture(scope="session")
def gateway(
    player: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """The real ``manage.py serve`` in front of ``player``."""
    upstreams = {
        "responses": {"dialect": "responses", "base_url": player.base_url, "profile": "openai"},
        "chat": {"dialect": "chat", "base_url": player.base_url, "capabilities": CAPABLE},
        "anthropic": {"dialect": "anthropic", "base_url": player.url, "profile": "anthropic"},
    }
    config = toml_for(upstreams, plays.ROUTES)
    with Gateway(tmp_path_factory.mktemp("gateway"), config=config) as running:
        yield running
