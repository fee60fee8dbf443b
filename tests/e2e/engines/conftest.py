"""A real llama.cpp as the upstream of a gateway, once for each dialect."""

from collections.abc import Iterator

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.llama_server import BUILD_WITHIN_S, running_llama_server

from . import claude_code

ROUTES = "".join(
    f"""
[[routes]]
model = "{dialect}"
targets = [{{ upstream = "{dialect}", model = "tiny" }}]
"""
    for dialect in ("anthropic", "chat", "responses")
)


BUILT = pytest.param("llama-server", marks=[pytest.mark.slow, pytest.mark.timeout(BUILD_WITHIN_S)])


@pytest.fixture(scope="session", params=["xllamacpp", BUILT])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of the engine: the package in the fast lane, the real program in the slow lane."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with running_llama_server(log, request.param) as url:
        yield url


@pytest.fixture(scope="session")
def engine_gateway(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose upstream is the engine; the model names the dialect."""
    upstreams = {
        dialect: {"dialect": dialect, "base_url": engine + path, "profile": "llamacpp"}
        for dialect, path in (("anthropic", ""), ("chat", "/v1"), ("responses", "/v1"))
    }
    config = toml_for(upstreams, ROUTES)
    with Gateway(tmp_path_factory.mktemp("engine-gateway"), config=config) as running:
        yield running


@pytest.fixture(scope="session")
def claude() -> str:
    """The program of Claude Code."""
    return claude_code.install()
