"""The docs describe every setting, command, path, field and event."""

import re

import pytest
from django.core.management import get_commands, load_command_class
from django.urls import get_resolver

from bridge_project.env import TABLE
from proxy.routing import EXACT_PATHS
from tests.slow.faults.catalogue import catalogue
from translator.openai_chat.request import request_body as chat_request
from translator.openai_responses.request import request_body as responses_request
from translator.openai_responses.stream.event_table import EVENT_MAPPINGS, IGNORED, PINGS
from translator.openai_responses.stream.responses_stream import ResponsesStream
from translator.request.unsent_fields import DROPPED

OURS = sorted(name for name, app in get_commands().items() if app == "proxy")


@pytest.fixture(scope="module")
def operate(repository):
    return (repository / "docs/operate.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def settings_page(repository):
    return (repository / "docs/reference/settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("variable", TABLE, ids=lambda variable: variable.name)
def test_a_setting_is_documented_and_read(repository, settings_page, variable):
    settings = (repository / "bridge_project/settings.py").read_text(encoding="utf-8")

    assert f"| `{variable.name}` |" in settings_page
    assert f'"{variable.name}"' in settings


def test_the_settings_read_no_variable_that_is_not_in_the_table(repository):
    settings = (repository / "bridge_project/settings.py").read_text(encoding="utf-8")

    read = set(re.findall(r'env_\w+\(\s*"(\w+)"', settings))

    assert read == {variable.name for variable in TABLE}


@pytest.mark.parametrize("name", OURS)
def test_a_command_is_documented_and_shows_an_example(settings_page, name):
    command = load_command_class("proxy", name)
    parser = command.create_parser("manage.py", name)

    assert f"| `{name}` |" in settings_page
    assert f"manage.py {name}" in parser.format_help().partition("--help")[2]


@pytest.mark.parametrize("path", EXACT_PATHS)
def test_a_path_of_the_gateway_is_documented(operate, path):
    assert re.search(rf"`(GET|HEAD|POST) {re.escape(path)}`", operate)


def mounts(patterns, prefix=""):
    """Yield the first part of each path that Django answers."""
    for pattern in patterns:
        path = prefix + str(pattern.pattern).lstrip("^")
        if "/" not in path and hasattr(pattern, "url_patterns"):
            yield from mounts(pattern.url_patterns, path)
        else:
            yield path.split("/")[0]


def test_each_mount_of_django_is_documented(operate):
    found = set(mounts(get_resolver().url_patterns))

    assert "admin" in found
    assert {mount for mount in found if f"/{mount}" not in operate} == set()


def test_links_between_the_pages_have_a_target(repository):
    pages = [repository / "README.md", *(repository / "docs").rglob("*.md")]

    broken = [
        f"{page.name}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]

    assert len(pages) > 10
    assert broken == []


def test_files_that_pages_name_exist(repository):
    """Pages name files from the root; tables of tests name them below ``tests``."""
    pages = [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]
    named = {
        path
        for page in pages
        for path in re.findall(r"`((?:\w+/)+[\w.]+\.py)`", page.read_text(encoding="utf-8"))
    }
    roots = (repository, repository / "tests")

    assert len(named) > 100
    assert {path for path in named if not any((root / path).is_file() for root in roots)} == set()


def test_counts_of_the_readme_are_reached(repository):
    page = (repository / "README.md").read_text(encoding="utf-8")
    claimed = {what: int(count) for count, what in re.findall(r"more than (\d+) (\w+)", page)}
    cases = [case for case in (repository / "tests/cases").glob("*/*") if case.is_dir()]

    assert claimed.keys() == {"faults", "unusual"}
    assert len(catalogue()) > claimed["faults"]
    assert len(cases) > claimed["unusual"]


COMMAND = re.compile(
    r"(?P<name>\bmanage\.py [a-z_]+|-m (?:benchmarks|tests)(?:\.\w+)+|benchmarks/\w+\.py)(?P<rest>[^`\n]*)`"
)
"""A command inside a sentence; test_code_blocks.py runs the code blocks."""
OPTION = re.compile(r"(?<= )--[a-z][a-z-]*")


def help_of(repository, name):
    """Return a command's help or a script's source; empty: the command does not exist."""
    first, _, second = name.partition(" ")
    if first == "manage.py":
        app = get_commands().get(second)
        command = app and load_command_class(app, second)
        return command.create_parser("manage.py", second).format_help() if command else ""
    place = repository / second.replace(".", "/") if first == "-m" else repository / first
    files = [place, place.with_suffix(".py"), *place.glob("*.py")]
    return "".join(one.read_text(encoding="utf-8") for one in files if one.is_file())


def test_commands_inside_sentences_exist_with_their_options(repository):
    pages = [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]
    mentioned = {
        (found["name"], option)
        for page in pages
        for found in COMMAND.finditer(page.read_text(encoding="utf-8"))
        for option in ["", *OPTION.findall(found["rest"])]
    }
    known = {name: help_of(repository, name) for name, _ in mentioned}

    assert len(mentioned) > 50
    assert {name for name, text in known.items() if not text} == set()
    assert {(name, option) for name, option in mentioned if option not in known[name]} == set()


@pytest.fixture(scope="module")
def mapped(repository):
    """Return each generated table of the mapping as the set of the names in it."""
    page = (repository / "docs/mapping.md").read_text(encoding="utf-8")
    parts = re.findall(r"<!-- generated: (\w+) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    return {name: set(re.findall(r"`([^`]+)`", text)) for name, text in parts}


@pytest.mark.parametrize("tables", [responses_request, chat_request])
def test_the_mapping_of_every_field_is_documented(mapped, tables):
    fields = {*tables.COPIED, *tables.RENAMED, *tables.BUILT, *DROPPED, *tables.REFUSED}

    assert fields - mapped["request_fields"] == set()


def test_every_event_is_documented(mapped):
    events = {*EVENT_MAPPINGS, *PINGS, *IGNORED, *ResponsesStream.HANDLERS}

    assert events - mapped["responses_events"] == set()
