"""The configurations of docs/guides/engines.md: each one is valid, and llama.cpp's answer."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from proxy.config.load import read_file
from tests.fakes.servers.gateway import TEAM, Gateway

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "engines.md"
SECTION = re.compile(r"^## (?P<name>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```toml\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
ENGINES = [
    "llama.cpp",
    "vLLM",
    "Ollama",
    "LM Studio",
    "transformers",
    "mlx",
    "SGLang",
    "LiteLLM",
]
SECTIONS = {found["name"]: found["text"] for found in SECTION.finditer(PAGE.read_text())}
BLOCKS = [
    (name, block["text"]) for name in ENGINES for block in BLOCK.finditer(SECTIONS.get(name, ""))
]
"""Every configuration of the page, with the name of its engine."""
RUNNING = [text for name, text in BLOCKS if name == "llama.cpp"]


def test_each_engine_has_a_section_with_a_dialect_and_a_configuration():
    for name in ENGINES:
        assert "Recommended dialect: `chat`" in SECTIONS[name]
        assert name in {engine for engine, _ in BLOCKS}
        assert name == "llama.cpp" or "Not run by the tests" in SECTIONS[name]


@pytest.mark.parametrize(("name", "text"), BLOCKS)
def test_each_configuration_is_valid(name, text, tmp_path, monkeypatch):
    monkeypatch.setenv("LITELLM_MASTER_KEY", "sk-x")
    path = tmp_path / "bridge.toml"
    path.write_text(text)

    read_file(path)

    upstreams = {upstream["name"] for upstream in tomllib.loads(text)["upstreams"]}
    targets = [route["targets"] for route in tomllib.loads(text)["routes"]]
    assert {target["upstream"] for each in targets for target in each} == upstreams


CHAT, ANTHROPIC = RUNNING


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CHAT, id="chat"),
        pytest.param(ANTHROPIC, id="anthropic", marks=pytest.mark.slow),
    ],
)
def test_the_configurations_for_llama_cpp_answer(engine, text, tmp_path):
    config = text.replace("http://127.0.0.1:8080", engine) + TEAM

    with Gateway(tmp_path, config=config) as gateway:
        body = {
            "model": "claude-sonnet-5-5",
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "zhello"}],
        }
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        reply = gateway.request("POST", "/v1/messages", json.dumps(body).encode(), headers)

    assert reply.status == 200, reply.body
    (block,) = json.loads(reply.body)["content"]
    assert block["text"].startswith("Hello from a real engine")
