"""Rules of this house that no linter knows: each is a function over a file's syntax tree.

A place that may break a rule stands in ``ALLOWED`` with its reason; one that no longer does fails.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("bridge_project", "proxy", "translator")
SECRET = re.compile(r"secret|digest|signature|token$|password|api_key")
TELLING = re.compile(r"^(headers|body|secret|password|api_key|authorization|raw|prompt|token)$")
LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")
OUTSIDE = (
    "requests",
    "httpx",
    "aiohttp",
    "urllib.request",
    "http.client",
    "smtplib",
    "ftplib",
)

ALLOWED = {
    ("made up sql", "proxy/record/spool_file.py"): "numbers of marks and our own names; values are bound",
    ("made up sql", "proxy/record/statements.py"): "names of models and their columns, quoted; values are bound",
    ("made up sql", "proxy/record/retention.py"): "a table's quoted name, which no parameter can be",
    ("made up sql", "proxy/record/partitions.py"): "names and bounds of partitions, which no parameter can be",
    ("compares secrets", "proxy/gateway/idempotency.py"): "a digest of the body that its own key sent before",
    ("speaks to the network", "proxy/gateway/upstream.py"): "the one client of upstreams",
    ("speaks to the network", "proxy/gateway/notices.py"): "webhooks of budgets",
    ("speaks to the network", "proxy/config/doctor.py"): "asks the upstreams that are configured",
    ("speaks to the network", "proxy/signin/provider.py"): "the sign-in provider that is configured",
    ("runs what it is told", "proxy/record/spool.py"): "our own program, with paths of our own",
    ("measures with the wall clock", "proxy/metrics/worker.py"): "age of another process's figures",
    ("measures with the wall clock", "proxy/record/drainer.py"): "age of a record on the disk",
    ("measures with the wall clock", "proxy/record/recorder.py"): "age of a record on the disk",
    ("measures with the wall clock", "proxy/record/spending.py"): "whether a period of the calendar is over",
    ("reads json trustingly", "proxy/gateway/configuration.py"): "a file that this gateway wrote itself",
    ("reads json trustingly", "proxy/gateway/consumer.py"): "one name in a body that is refused, for its row",
    ("reads json trustingly", "proxy/gateway/decoding.py"): "an upstream's, where msgspec is too strict",
    ("reads json trustingly", "proxy/gateway/entries.py"): "one short string, whose one text is kept",
    ("reads json trustingly", "proxy/gateway/safejson.py"): "the second look, after the depth is known",
    ("reads json trustingly", "proxy/reports/answers.py"): "a cursor of ours; what is not one is a 400",
    ("reads json trustingly", "proxy/reports/json_bodies.py"): "after its values are counted; too deep is a 400",
    ("compares secrets", "proxy/admin/sides.py"): "a digest of a body that both sides may read",
    ("compares secrets", "proxy/admin/upstream_secrets.py"): "the mark for 'keep it', not a secret",
    ("compares secrets", "proxy/record/audit.py"): "digests of rows, which the reader of rows can make",
}  # fmt: skip
"""(rule, file) -> why."""


@cache
def sources() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(REPOSITORY)): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if "migrations" not in path.parts
    }


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or an attribute; of anything else its last part."""
    match node:
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}".lstrip(".")
        case ast.Name(id=name):
            return name
        case ast.Call(func=func):
            return dotted(func) + "()"
    return ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def made_up_sql(tree: ast.Module) -> Iterator[int]:
    """SQL with values pasted into it, or Django's ways around its own quoting."""
    for name, call in calls(tree):
        last = name.rpartition(".")[2]
        pasted = call.args and isinstance(call.args[0], ast.JoinedStr | ast.BinOp)
        if (last in {"raw", "extra", "RawSQL"} and name != "raw") or (
            last in {"execute", "executemany", "executescript"} and pasted
        ):
            yield call.lineno


def trusts_markup(tree: ast.Module) -> Iterator[int]:
    """Text that is declared to be safe HTML."""
    for name, call in calls(tree):
        if name.rpartition(".")[2] in {"mark_safe", "SafeString", "SafeText"}:
            yield call.lineno


def fetches_past_the_rights(tree: ast.Module) -> Iterator[int]:
    """``Model.objects.get(pk=…)`` in a view: rows are asked for through what the caller may see."""
    for name, call in calls(tree):
        if name.endswith(".objects.get") and any(one.arg in {"pk", "id"} for one in call.keywords):
            yield call.lineno


def speaks_to_the_network(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name == one or name.startswith(f"{one}.") for name in names for one in OUTSIDE):
            yield node.lineno


def logs_what_is_private(tree: ast.Module) -> Iterator[int]:
    """A header, a body or a secret as an argument of a log line."""
    for name, call in calls(tree):
        owner, _, last = name.rpartition(".")
        if last in LOGS and owner.rpartition(".")[2] in {"log", "logger", "logging", "access"}:
            for part in ast.walk(
                ast.Tuple(elts=[*call.args, *(one.value for one in call.keywords)])
            ):
                said = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                if TELLING.match(said):
                    yield call.lineno


def measures_with_the_wall_clock(tree: ast.Module) -> Iterator[int]:
    """A difference to ``time.time()`` that is a duration: the clock may jump."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            left = dotted(node.left)
            if (
                left == "time.time()"
                and not dotted(node.right).isupper()
                and not _constant(node.right)
            ):
                yield node.lineno


def _constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.Attribute) and node.attr.isupper()
    )


def catches_everything(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno


def reads_json_trustingly(tree: ast.Module) -> Iterator[int]:
    """``json.loads`` knows no depth and takes the last of two keys; clients' bytes go another way."""
    for name, call in calls(tree):
        if name in {"json.loads", "json.load", "msgspec.json.decode"}:
            yield call.lineno


def money_from_floats(tree: ast.Module) -> Iterator[int]:
    for name, call in calls(tree):
        if name.rpartition(".")[2] == "Decimal" and call.args:
            value = call.args[0]
            if isinstance(value, ast.Constant) and isinstance(value.value, float):
                yield call.lineno
            if isinstance(value, ast.Call) and dotted(value.func) == "float":
                yield call.lineno


def runs_what_it_is_told(tree: ast.Module) -> Iterator[int]:
    """Code, pickles, unsafe YAML, other programs."""
    for name, call in calls(tree):
        first, last = name.partition(".")[0], name.rpartition(".")[2]
        if (
            name in {"eval", "exec", "compile", "__import__", "yaml.load", "os.system", "os.popen"}
            or first in {"pickle", "marshal", "shelve", "subprocess", "pty"}
            or last
            in {
                "create_subprocess_exec",
                "create_subprocess_shell",
            }
        ):
            yield call.lineno


def compares_secrets(tree: ast.Module) -> Iterator[int]:
    """``==`` stops at the first byte that differs: ``hmac.compare_digest`` does not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, *node.comparators]
            named = [dotted(side).rpartition(".")[2].removesuffix("()") for side in sides]
            if any(SECRET.search(name) for name in named) and not any(map(_literal, sides)):
                yield node.lineno


def _literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Dict | ast.List | ast.Set | ast.Tuple)


Rule = Callable[[ast.Module], Iterator[int]]
RULES: dict[Rule, tuple[str, ...]] = {
    made_up_sql: PACKAGES,
    trusts_markup: PACKAGES,
    fetches_past_the_rights: ("proxy/admin", "proxy/reports"),
    speaks_to_the_network: PACKAGES,
    logs_what_is_private: PACKAGES,
    measures_with_the_wall_clock: PACKAGES,
    catches_everything: PACKAGES,
    reads_json_trustingly: ("proxy/gateway", "proxy/reports", "proxy/live"),
    money_from_floats: PACKAGES,
    runs_what_it_is_told: PACKAGES,
    compares_secrets: PACKAGES,
}
"""What each rule looks at."""


def title(rule: Rule) -> str:
    return rule.__name__.replace("_", " ")


@pytest.mark.parametrize("rule", RULES, ids=title)
def test_no_file_breaks_the_rule(rule):
    found = {
        name: lines
        for name, tree in sources().items()
        if name.startswith(RULES[rule]) and (lines := sorted(rule(tree)))
    }
    allowed = {name for told, name in ALLOWED if told == title(rule)}

    assert {name: lines for name, lines in found.items() if name not in allowed} == {}
    if rule is not speaks_to_the_network:  # the client of upstreams has its doors by name
        stale = (allowed & set(sources())) - set(found)
        assert stale == set(), "allowed, but nothing there breaks the rule"


BREAKING = {
    made_up_sql: "cursor.execute(f'SELECT {x}')\nModel.objects.raw(x)\nqs.extra(where=[x])",
    trusts_markup: "mark_safe(x)\nSafeString(x)",
    fetches_past_the_rights: "Key.objects.get(pk=x)",
    speaks_to_the_network: "import httpx\nfrom aiohttp import web\nimport urllib.request",
    logs_what_is_private: "log.info('%s', request.headers)\nlogger.error(body)\nlog.warning('x', key.secret)",
    measures_with_the_wall_clock: "x = time.time() - began",
    catches_everything: "try:\n    x\nexcept:\n    y",
    reads_json_trustingly: "json.loads(body)",
    money_from_floats: "Decimal(0.1)\nDecimal(float(x))",
    runs_what_it_is_told: "eval(x)\npickle.loads(x)\nsubprocess.run(x)\nyaml.load(x)\nos.system(x)",
    compares_secrets: "a.secret == b\nx == digest\nsignature != given",
}


@pytest.mark.parametrize("rule", RULES, ids=title)
def test_the_rule_would_notice(rule):
    code = BREAKING[rule]

    assert len(list(rule(ast.parse(code)))) >= code.count("\n") + 1 - 3 * (
        rule is catches_everything
    )


@pytest.mark.parametrize(
    "sign", ["|safe", "autoescape off", "safeseq", "unsafe-inline", "javascript:", "onclick="]
)
def test_no_template_trusts_what_it_is_given(sign):
    found = [
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "proxy").rglob("*.html")
        if sign in path.read_text(encoding="utf-8")
    ]

    assert found == []
