"""Run the linters and generators as tests, so that their findings fail the build."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

TOOLS = {
    "ruff": [sys.executable, "-m", "ruff", "check", "."],
    "format": [sys.executable, "-m", "ruff", "format", "--check", "."],
    "mypy": [sys.executable, "-m", "mypy"],
    "imports": [str(Path(sys.executable).with_name("lint-imports"))],
    "docs": [sys.executable, "docs/generate", "--check"],
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", TOOLS)
def test_the_tool_finds_nothing(repository, tool):
    run = subprocess.run(  # noqa: S603 - the command lines above
        TOOLS[tool], cwd=repository, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.django_db
def test_the_migrations_contain_all_fields_of_the_models(capsys):
    call_command("makemigrations", "--check", "--dry-run")  # exits if one is missing

    assert "No changes detected" in capsys.readouterr().out
