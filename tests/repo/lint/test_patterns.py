"""Check that no regular expression of the product_patterns takes more than linear time.

The test collects the patterns: constants in calls of ``re``, compiled patterns in the attributes of
modules, and those of URLs and validators. ``pattern_cost`` checks the structure of each; then each
searches 64 KB of its own worst text under a CPU limit that only linear patterns meet.
"""

import ast
import importlib
import json
import pkgutil
import re
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.validators import RegexValidator
from django.urls import get_resolver

from .pattern_cost import Automaton

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("bridge_project", "proxy", "translator")
FUNCTIONS = frozenset(
    {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
)
FROM_START = frozenset({"match", "fullmatch"})
MADE = {
    # Patterns that a function builds: the file, and examples of the built patterns.
    "proxy/erasure/person.py": [r"(?<![\w@+-])(?<!\w\.)(?:ada@corp|ada)(?![\w@+-])(?!\.\w)"],
    "proxy/gateway/snapshot/config_snapshot.py": [
        r"(?s:claude\-.*)\Z"
    ],  # a star of fnmatch does not backtrack since Python 3.11
    # only one star, at the end
    "proxy/models/setup/upstream_connection.py": [r"(?s:x\-project)\Z|(?s:x\-corp\-.*)\Z"],
}
BAD = (
    (r"\bmodel\b.*\b(?:not found|does not exist)", re.IGNORECASE),
    (r"\b(?:[a-z0-9-]+\.)+(?:com|net|org)\b", 0),
    (r"\b[a-z][a-z0-9+.-]*://[^\s]+", 0),
    (r"(?:in) ((?:\d+(?:\.\d+)? ?(?:h|ms|m|s)?)+)\Z", 0),
    (r"(a+)+b", 0),
    (r"(?:a|a)*b", 0),
    (r"a*a*b", 0),
    (r"\s+$", 0),
    (r"<.*>", 0),
)
GOOD = (
    (r"\d+", 0),
    (r"[a-z]{1,64}x", 0),
    (r"'[^']*'", 0),
    (r"\A.*x", 0),
    (r"session_([a-z]+)$", 0),
)
CPU_S = 120
"""CPU limit of the process that runs all patterns; one quadratic pattern takes longer."""


Patterns = dict[tuple[Any, int], tuple[str, bool]]
"""(pattern, flags) -> (place, whether it is ever searched for)."""


def source_files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((REPOSITORY / package).rglob("*.py"))


@cache
def syntax_nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_bytes()))]


def modules() -> Iterator[Any]:
    for package in PACKAGES:
        root = importlib.import_module(package)
        yield root
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            yield importlib.import_module(found.name)


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Yield each call of a function of ``re``: its file, the call and the function."""
    for path in source_files():
        for node in syntax_nodes(path):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr in FUNCTIONS
            ):
                yield path, node, node.func.attr


def flags_of(call: ast.Call) -> int:
    given = [*call.args[1:], *(word.value for word in call.keywords if word.arg == "flags")]
    for each in given:
        if "re." in (text := ast.unparse(each)):
            return int(eval(text, {"re": re}))  # noqa: S307 - a line of this repository
    return 0


def constant_patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Yield the patterns that are constants in a call, and whether the call searches for them."""
    for file, call, function in calls():
        if isinstance(call.args[0], ast.Constant):
            pattern = re.compile(call.args[0].value, flags_of(call))
            place = f"{file.relative_to(REPOSITORY)}:{call.lineno}"
            yield place, pattern, function not in FROM_START | {"compile"}


def methods_by_name() -> Mapping[str, set[str]]:
    """Return pattern name -> the methods that are called on it anywhere."""
    found: dict[str, set[str]] = {}
    for path in source_files():
        for node in syntax_nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                owner = node.value
                name = getattr(owner, "attr", None) or getattr(owner, "id", "")
                found.setdefault(name, set()).add(node.attr)
    return found


def module_patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Yield the compiled patterns in module attributes; the methods_by_name of a name decide if it is searched."""
    used, seen = methods_by_name(), set()
    for module in modules():
        for name, value in vars(module).items():
            for pattern in patterns_in(value, seen):
                own = value is pattern and used.get(name, set()) - {"compile"}
                yield f"{module.__name__}.{name}", pattern, not (own and own <= FROM_START)


def patterns_in(value: Any, seen: set[int], depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if type(value) in weakref.ProxyTypes:  # from imports of other tests in this process
        return
    value = getattr(value, "__self__", value) if callable(value) else value  # ``x = p.fullmatch``
    if isinstance(value, re.Pattern):
        yield value
    elif id(value) not in seen and depth <= 8 and (parts := parts_of(value)):
        seen.add(id(value))
        for part in parts:
            yield from patterns_in(part, seen, depth + 1)


def parts_of(value: Any) -> list[Any]:
    """Return the elements of a collection or the attributes of an object of the product_patterns."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__.split(".")[0] in PACKAGES:
        slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        return [getattr(value, name, None) for name in slots] + [
            *getattr(value, "__dict__", {}).values()
        ]
    return [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]


def url_patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    waiting = [get_resolver("bridge_project.urls")]
    while waiting:
        each = waiting.pop()
        waiting += getattr(each, "url_patterns", ())
        regex = getattr(each.pattern, "regex", None)
        if isinstance(regex, re.Pattern):
            whole = getattr(each.pattern, "_is_endpoint", False) and regex.pattern.endswith("$")
            yield f"URL {each.pattern}", regex, not whole  # Django matches the whole path with it


def validator_patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Yield the patterns of model fields and of the configuration's structs."""
    for model in apps.get_models():
        if model.__module__.startswith(PACKAGES):
            for field in model._meta.get_fields():
                for validator in getattr(field, "validators", ()):
                    if isinstance(validator, RegexValidator):
                        yield f"{model.__name__}.{field.name}", validator.regex, True
    for path in source_files():
        for node in syntax_nodes(path):
            named = isinstance(node, ast.keyword) and node.arg in {"pattern", "regex"}
            text = getattr(node.value, "value", None) if named else None
            if isinstance(text, str):
                yield f"{path.name}:{node.value.lineno}", re.compile(text), True


def product_patterns() -> Patterns:
    found: Patterns = {}
    made = (
        (file, re.compile(text), False) for file, texts in MADE.items() for text in texts
    )  # fmt: skip
    for source in (
        module_patterns(),
        constant_patterns(),
        url_patterns(),
        validator_patterns(),
        made,
    ):
        for place, pattern, searched in source:
            key = pattern.pattern, pattern.flags
            found[key] = (
                found.get(key, (place, False))[0],
                found.get(key, ("", False))[1] or searched,
            )
    return found


@pytest.fixture(scope="module")
def product() -> Patterns:
    return product_patterns()


def test_structure_of_each_pattern_is_linear(product: Patterns):
    faults = {
        place: [*Automaton(re.compile(pattern, flags)).faults(searched=searched)]
        for (pattern, flags), (place, searched) in product.items()
    }

    assert {place: found for place, found in faults.items() if found} == {}


@pytest.mark.parametrize(("pattern", "flags"), BAD)
def test_a_bad_pattern_is_reported(pattern, flags):
    assert [*Automaton(re.compile(pattern, flags)).faults()]


@pytest.mark.parametrize(("pattern", "flags"), GOOD)
def test_a_good_pattern_is_not_reported(pattern, flags):
    assert [*Automaton(re.compile(pattern, flags)).faults()] == []


def test_the_collection_contains_known_patterns(product: Patterns):
    places = {place for place, _ in product.values()}
    texts = {str(pattern) for pattern, _ in product}

    assert len(product) > 100
    assert any(place.startswith("URL ") for place in places)
    for known in (
        r"\bmodel\b",
        r"^[A-Za-z0-9_-]{1,64}$",
        r"\btemperature\b",
        "[A-Za-z0-9_-]{1,64}",
        "[A-Z][a-z]*",
    ):
        assert known in texts


def test_a_pattern_that_a_function_builds_is_listed():
    """A pattern that is not a constant is a module attribute or is listed in ``MADE``."""
    loose = {
        str(file.relative_to(REPOSITORY))
        for file, call, _ in calls()
        if not isinstance(call.args[0], ast.Constant) and call in calls_in_functions(file)
    }

    # ``module_patterns`` finds those of the repairs in the module's tables.
    assert loose - {"translator/request/retry_repairs.py"} == MADE.keys()


@cache
def calls_in_functions(path: Path) -> set[ast.AST]:
    return {
        node
        for function in syntax_nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }


def run_all(patterns: Mapping[tuple[Any, int], bool], cpu_s: int) -> tuple[int, str]:
    """Search each pattern's worst texts in a new process; return its exit code and output."""
    work = [
        {
            "pattern": repr(pattern),
            "flags": flags,
            "searched": searched,
            "pumps": [*map(repr, sorted(Automaton(re.compile(pattern, flags)).pumps())[:6])],
        }
        for (pattern, flags), searched in patterns.items()
    ]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))

    ended = subprocess.run(  # noqa: S603 - this interpreter, a file of ours
        [sys.executable, str(Path(__file__).with_name("pattern_run.py"))],
        input=json.dumps(work).encode(),
        capture_output=True,
        preexec_fn=limit,
        check=False,
    )
    return ended.returncode, ended.stdout.decode()


def test_each_pattern_takes_linear_time_for_64_kb_of_its_worst_text(product: Patterns):
    assert run_all({key: searched for key, (_, searched) in product.items()}, CPU_S) == (0, "")


def test_the_run_notices_a_bad_pattern():
    assert run_all({BAD[0]: True}, 1) != (0, "")
