"""The types of the official TypeScript SDK accept every answer: one file of literals for ``tsc``.

TypeScript's types are stricter than Python's: a field without ``?`` must exist, with null where its
value is unknown, and a literal with a field that its type does not have is an error. Answers of the
same shape (equal but for their texts and numbers) are checked once.
"""

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.npm import npm_packages
from tests.fakes.upstreams import recordings

from . import answers
from .test_sdk_types import BETA_BLOCKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SDK = "@anthropic-ai/sdk@1.14.0"
COMPILER = "typescript@7.0.2"
LITERAL_KEYS = frozenset(
    {"type", "role", "name", "stop_reason", "service_tier", "category", "error_code"}
)
"""The keys whose strings the types list."""
IMPORTS = """\
import type { Message, RawMessageStreamEvent } from "@anthropic-ai/sdk/resources/messages";
import type { BetaContentBlock, BetaRawContentBlockStartEvent } from "@anthropic-ai/sdk/resources/beta/messages";
type BetaMessage = Omit<Message, "content"> & { content: Array<BetaContentBlock> };
type BetaStartEvent = BetaRawContentBlockStartEvent;
"""
"""Blocks that only the beta API has are checked in an answer that has the stable fields beside them:
the beta's further fields are those of features that an answer of another server cannot have."""
OPTIONS = ["--strict", "--noEmit", "--skipLibCheck", "--pretty", "false"]
OPTIONS += ["--module", "nodenext", "--moduleResolution", "nodenext", "--target", "es2022"]


@pytest.fixture(scope="session")
def modules() -> Path:
    return npm_packages("typescript-1.14.0-7.0.2", SDK, COMPILER)


def shape(value: Any, key: str = "") -> Any:
    """Return the value with equal texts and numbers, but for the strings that types list."""
    match value:
        case dict():
            return {name: shape(inner, name) for name, inner in value.items()}
        case list():
            return [shape(inner, key) for inner in value]
        case str():
            return value if key in LITERAL_KEYS else ""
        case bool() | None:
            return value
    return 0


def is_beta(value: dict[str, Any]) -> bool:
    text = json.dumps(value)
    return any(name in text for name in BETA_BLOCKS)


def literals(all_answers: Iterable[answers.Answer]) -> dict[str, str]:
    """Return the declaration of a constant for each shape -> the answer that has it."""
    found: dict[str, tuple[str, str]] = {}
    for answer in all_answers:
        typed = [
            ("BetaStartEvent" if is_beta(event) else "RawMessageStreamEvent", event)
            for event in answer.events
            if event["type"] not in {"ping", "error"}
        ]
        if not answer.failed:
            message = answer.typed_message
            typed.append(("BetaMessage" if is_beta(message) else "Message", message))
        for kind, value in typed:
            text = json.dumps(shape(value))
            found.setdefault(f"{kind} = {text}", (answer.name, text))
    return {
        f"export const a{number}: {declared};": name
        for number, (declared, (name, _)) in enumerate(found.items())
    }


def refusals(modules: Path, folder: Path, declarations: dict[str, str]) -> list[str]:
    """Compile the declarations; return each error with the name of its answer."""
    (folder / "node_modules").symlink_to(modules)
    (folder / "package.json").write_text('{"type": "module"}')
    lines = [*IMPORTS.splitlines(), *declarations]
    (folder / "answers.ts").write_text("\n".join(lines))
    compiler = modules / ".bin" / "tsc"
    done = subprocess.run(  # noqa: S603 - the compiler
        [str(compiler), *OPTIONS, "answers.ts"], cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip
    errors = []
    for line in done.stdout.splitlines():
        if match := re.match(r"answers\.ts\((\d+),\d+\): (.*)", line):
            declared = lines[int(match[1]) - 1]
            errors.append(f"{declarations.get(declared)}: {match[2]} in {declared[:300]}")
        elif not line.startswith(" "):
            errors.append(line)
        elif errors:
            errors[-1] += f" {line.strip()}"
    assert done.returncode == 0 or errors, (done.stdout, done.stderr)
    return errors


@pytest.mark.skipif(not answers.recorded(), reason=recordings.ABSENT)
def test_the_typescript_types_accept_every_recorded_answer(modules, tmp_path):
    assert refusals(modules, tmp_path, literals(answers.recorded())) == []


def test_the_typescript_types_accept_the_answer_of_every_case(modules, tmp_path):
    assert refusals(modules, tmp_path, literals(answers.of_cases())) == []


def test_the_compiler_names_each_invalid_answer(modules, tmp_path):
    opened = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    unknown = {"type": "content_block_stop", "index": 0, "colour": "red"}

    errors = refusals(
        modules, tmp_path, literals([answers.Answer("bad", [opened, unknown, {"type": "error"}])])
    )

    assert len(errors) == 2
    assert all(error.startswith("bad: ") for error in errors)
    assert "'citations' is missing" in errors[0]
    assert "colour" in errors[1]
