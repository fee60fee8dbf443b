"""Claude Code itself works through the gateway.

With a scripted agent as the upstream, it runs a whole task: tools one by one and in parallel, a
sub-agent and compaction. The script reads each request as a model would. With a real engine it runs
one tool: the tiny model knows the word ``zbash``, calls the tool Bash with ``cat note.txt``, and
after the tool's result it says that it is done.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.scripted_agent import Call, Plan, ScriptedAgent
from tests.fakes.upstreams.upstream import ScriptedUpstream

from . import claude_code

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIALECTS = ("chat", "responses")
TOOLS = "Bash,Read,Edit,Agent,Task"
WINDOW_FULL = 95_000
"""Input tokens after which Claude Code compacts its window before its next request."""


@pytest.fixture(scope="module")
def agent_upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def agent_gateway(agent_upstream, tmp_path_factory) -> Iterator[Gateway]:
    """A gateway in front of the scripted agent; the model names the dialect."""
    upstreams = {
        dialect: {"dialect": dialect, "base_url": agent_upstream.base_url, "profile": "openai"}
        for dialect in DIALECTS
    }
    routes = "".join(
        f'\n[[routes]]\nmodel = "{dialect}"\n'
        f'targets = [{{ upstream = "{dialect}", model = "agent" }}]\n'
        for dialect in DIALECTS
    )
    folder = tmp_path_factory.mktemp("agent-gateway")
    with Gateway(folder, config=toml_for(upstreams, routes)) as running:
        yield running


def run(*arguments: Any, **options: Any) -> claude_code.Run:
    """Run one prompt, which must succeed."""
    done = claude_code.run(*arguments, **options)
    assert done.succeeded, (done.lines[-3:], done.errors)
    return done


def plans(folder: Path) -> list[Plan]:
    """The task of the main agent, and that of its sub-agent."""
    note = str(folder / "note.txt")

    def bash(command: str) -> Call:
        return Call(("Bash",), {"command": command, "description": "Run it"})

    edit = {"file_path": note, "old_string": "seven", "new_string": "eight"}
    task = {"description": "Read it", "prompt": "zsub", "subagent_type": "general-purpose",
            "run_in_background": False}  # fmt: skip
    steps = [
        [bash("cat note.txt")],
        [Call(("Read",), {"file_path": note})],
        [Call(("Edit",), edit)],
        [bash("echo one"), bash("echo two")],
        [Call(("Agent", "Task"), task)],
    ]
    return [
        Plan("zwork", steps, lambda seen: " | ".join(seen.results)),
        Plan("zsub", [[bash("cat note.txt")]], lambda seen: f"The note: {seen.results[-1]}"),
        Plan("zrecall", (), lambda seen: "\n".join(seen.prompts)),
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_claude_code_does_a_whole_task_and_compacts_it(
    agent_upstream, agent_gateway, claude, tmp_path, dialect
):
    note = tmp_path / "note.txt"
    note.write_text("the number is seven\n")
    agent = ScriptedAgent(plans(tmp_path))
    agent_upstream.choose(agent)

    def prompt(text: str, *options: str) -> claude_code.Run:
        options = ("--allowedTools", TOOLS, *options)
        return run(claude, agent_gateway.url, tmp_path, text, *options, model=dialect)

    done = prompt("zwork")

    calls = [block["name"] for block in done.blocks("assistant") if block["type"] == "tool_use"]
    assert calls == ["Bash", "Read", "Edit", "Bash", "Bash", "Agent", "Bash"]
    assert note.read_text() == "the number is eight\n"
    results = done.text.split(" | ")
    assert results[0] == "the number is seven"
    assert sorted(results[3:5]) == ["one", "two"]
    assert "The note: the number is eight" in results[5]

    prompt("/compact", "--continue")
    recalled = prompt("zrecall", "--continue")

    assert agent.conversations[-2].wants_summary
    assert "remember the word marigold" in recalled.text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_claude_code_compacts_by_itself_when_the_window_is_full(
    agent_upstream, agent_gateway, claude, tmp_path, dialect
):
    (tmp_path / "note.txt").write_text("the number is seven\n")
    agent = ScriptedAgent(plans(tmp_path), input_tokens=WINDOW_FULL)
    agent_upstream.choose(agent)
    options = ("--allowedTools", TOOLS)

    run(claude, agent_gateway.url, tmp_path, "zsub", *options, model=dialect)
    run(claude, agent_gateway.url, tmp_path, "zrecall", *options, "--continue", model=dialect)

    assert [each.wants_summary for each in agent.conversations].count(True) == 1
    assert any("marigold" in prompt for prompt in agent.conversations[-1].prompts)


def test_claude_code_runs_a_tool_of_a_real_engine(engine_gateway, claude, tmp_path):
    (tmp_path / "note.txt").write_text("the note says seven\n")

    done = run(claude, engine_gateway.url, tmp_path, "zbash", "--allowedTools", "Bash")

    output = done.blocks("assistant")
    (call,) = [block for block in output if block["type"] == "tool_use"]
    assert (call["name"], call["input"]["command"]) == ("Bash", "cat note.txt")
    (result,) = [block for block in done.blocks("user") if block["type"] == "tool_result"]
    assert (result["tool_use_id"], result["content"]) == (call["id"], "the note says seven")
    assert (output[-1]["type"], output[-1]["text"]) == ("text", "The tool has answered; I am done.")
