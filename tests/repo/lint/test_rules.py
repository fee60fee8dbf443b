"""Check the project's rules of security; each is a function over a file's syntax tree.

``ALLOWED`` lists the files that may break a rule with the reason. An entry that is no longer needed
fails the test.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("bridge_project", "proxy", "translator")
SECRET = re.compile(r"secret|digest|signature|token$|password|api_key")
PRIVATE = re.compile(r"^(headers|body|secret|password|api_key|authorization|raw|prompt|token)$")
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
    ("builds sql from values", "proxy/ledger/database/bulk_sql.py"): "quoted names of tables and columns; values are bound",
    ("builds sql from values", "proxy/ledger/maintenance/retention.py"): "a quoted table name; SQL takes no parameter there",
    ("builds sql from values", "proxy/ledger/database/partitions.py"): "names and bounds of partitions; SQL takes no parameter there",
    ("builds sql from values", "proxy/ledger/search/term_index.py"): "a constant name and numbers of partitions; values are bound",
    ("trusts markup", "proxy/admin/transcript/markdown.py"): "nh3 (in the child process) removed all elements and attributes but a few",
    ("opens network connections", "proxy/gateway/webhooks.py"): "webhooks that a superuser or bridge.toml set",
    ("opens network connections", "proxy/gateway/web_search.py"): "the operator's search endpoint; no address from outside",
    ("opens network connections", "proxy/bootstrap/doctor.py"): "checks the configured upstreams",
    ("opens network connections", "proxy/bootstrap/upstream_checks.py"): "checks the configured upstreams",
    ("opens network connections", "proxy/models/setup/upstream_connection.py"): "reads the environment's proxies only",
    ("opens network connections", "proxy/signin/oidc_client.py"): "calls the configured sign-in provider",
    ("runs data as code", "proxy/gateway/credentials/command.py"): "a command that only bridge.toml can set, without a shell",
    ("runs data as code", "proxy/management/commands/backup.py"): "pg_dump with fixed options, without a shell; the operator names the file",
    ("reads json without limits", "proxy/gateway/credentials/command.py"): "64 KB that a configured program printed",
    ("reads json without limits", "proxy/gateway/credentials/google.py"): "a credentials file that the operator named",
    ("reads json without limits", "proxy/gateway/snapshot/config_cache.py"): "a file that the gateway wrote",
    ("reads json without limits", "proxy/gateway/endpoints/messages.py"): "one name in a rejected body, for its row",
    ("reads json without limits", "proxy/gateway/http/lenient_json.py"): "an upstream's JSON that msgspec rejects",
    ("reads json without limits", "proxy/gateway/http/request_body.py"): "parses after the depth check",
    ("reads json without limits", "proxy/gateway/webhooks.py"): "a body that the gateway wrote",
    ("reads json without limits", "proxy/reports/core/json_bodies.py"): "parses after the values are counted; too deep is a 400",
    ("compares secrets", "proxy/admin/transcript/tabs.py"): "a digest of a body that both callers may read",
    ("compares secrets", "proxy/admin/setup/upstream_form.py"): "the placeholder for an unchanged secret",
    ("compares secrets", "proxy/ledger/maintenance/verifier.py"): "digests of rows, which a reader of the rows can compute",
    ("compares secrets", "proxy/ledger/archive/outbox.py"): "digests of transcripts, which a reader of the files can compute",
    ("opens network connections", "proxy/gateway/upstream/get_client.py"): "asks configured upstreams for their models",
    ("opens network connections", "proxy/gateway/upstream/upstream_models.py"): "asks configured upstreams for their models",
    ("reads json without limits", "proxy/gateway/upstream/documents.py"): "what the gateway's own child process wrote",
    ("reads json without limits", "proxy/gateway/upstream/upstream_models.py"): "at most 4 MiB of a configured upstream",
    ("runs data as code", "proxy/limited_work.py"): "the gateway's own interpreter with a constant module, without a shell",
    ("compares secrets", "proxy/ledger/posting/audit_links.py"): "digests of entries, which a reader of the audit log can compute",
    ("compares secrets", "proxy/ledger/posting/hash_chain.py"): "digests of rows, which a reader of the rows can compute",
}  # fmt: skip
"""(rule, file) -> reason."""


@cache
def sources() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(REPOSITORY)): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if "migrations" not in path.parts
    }


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for a name or an attribute, the last part for anything else."""
    match node:
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}".lstrip(".")
        case ast.Name(id=name):
            return name
        case ast.Call(func=func):
            return dotted(func) + "()"
    return ""


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a file; every rule reads them."""
    return [*ast.walk(tree)]


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def builds_sql_from_values(tree: ast.Module) -> Iterator[int]:
    """Find SQL with inserted values, and Django's functions that bypass its quoting."""
    for name, call in calls(tree):
        last = name.rpartition(".")[2]
        pasted = call.args and isinstance(call.args[0], ast.JoinedStr | ast.BinOp)
        if (last in {"raw", "extra", "RawSQL"} and name != "raw") or (
            last in {"execute", "executemany", "executescript"} and pasted
        ):
            yield call.lineno


def trusts_markup(tree: ast.Module) -> Iterator[int]:
    """Find text that is declared safe HTML."""
    for name, call in calls(tree):
        if name.rpartition(".")[2] in {"mark_safe", "SafeString", "SafeText"}:
            yield call.lineno


def fetches_without_permission_filter(tree: ast.Module) -> Iterator[int]:
    """Find ``Model.objects.get(pk=…)`` in a view: a view must filter by the caller's permissions."""
    for name, call in calls(tree):
        if name.endswith(".objects.get") and any(one.arg in {"pk", "id"} for one in call.keywords):
            yield call.lineno


def opens_network_connections(tree: ast.Module) -> Iterator[int]:
    for node in nodes(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name == one or name.startswith(f"{one}.") for name in names for one in OUTSIDE):
            yield node.lineno


def logs_private_data(tree: ast.Module) -> Iterator[int]:
    """Find a header, a body or a secret as an argument of a log call."""
    for name, call in calls(tree):
        owner, _, last = name.rpartition(".")
        if last in LOGS and owner.rpartition(".")[2] in {"log", "logger", "logging", "access"}:
            for part in ast.walk(
                ast.Tuple(elts=[*call.args, *(one.value for one in call.keywords)])
            ):
                name_used = (
                    part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                )
                if PRIVATE.match(name_used):
                    yield call.lineno


def reads_json_without_limits(tree: ast.Module) -> Iterator[int]:
    """Find ``json.loads``: it has no depth limit and accepts duplicate keys."""
    for name, call in calls(tree):
        if name in {"json.loads", "json.load", "msgspec.json.decode"}:
            yield call.lineno


def runs_data_as_code(tree: ast.Module) -> Iterator[int]:
    """Find eval, pickle, unsafe YAML and the start of other programs."""
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
    """Find ``==`` on secrets: it stops at the first difference, ``hmac.compare_digest`` does not."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, *node.comparators]
            named = [dotted(side).rpartition(".")[2].removesuffix("()") for side in sides]
            if any(SECRET.search(name) for name in named) and not any(map(_literal, sides)):
                yield node.lineno


def _literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Dict | ast.List | ast.Set | ast.Tuple)


Rule = Callable[[ast.Module], Iterator[int]]
RULES: dict[Rule, tuple[str, ...]] = {
    builds_sql_from_values: PACKAGES,
    trusts_markup: PACKAGES,
    fetches_without_permission_filter: ("proxy/admin", "proxy/reports"),
    opens_network_connections: PACKAGES,
    logs_private_data: PACKAGES,
    reads_json_without_limits: ("proxy/gateway", "proxy/reports", "proxy/live"),
    runs_data_as_code: PACKAGES,
    compares_secrets: PACKAGES,
}
"""Rule -> folders that it checks."""


def title(rule: Rule) -> str:
    return rule.__name__.replace("_", " ")


@pytest.mark.parametrize("rule", RULES, ids=title)
def test_no_file_breaks_the_rule(rule):
    found = {
        name: lines
        for name, tree in sources().items()
        if name.startswith(RULES[rule]) and (lines := sorted(rule(tree)))
    }
    allowed = {name for rule_title, name in ALLOWED if rule_title == title(rule)}

    assert {name: lines for name, lines in found.items() if name not in allowed} == {}
    assert allowed - set(found) == set(), "allowed, but nothing there breaks the rule"


BREAKING = {
    builds_sql_from_values: "cursor.execute(f'SELECT {x}')\nModel.objects.raw(x)\nqs.extra(where=[x])",
    trusts_markup: "mark_safe(x)\nSafeString(x)",
    fetches_without_permission_filter: "Key.objects.get(pk=x)",
    opens_network_connections: "import httpx\nfrom aiohttp import web\nimport urllib.request",
    logs_private_data: "log.info('%s', request.headers)\nlogger.error(body)\nlog.warning('x', key.secret)",
    reads_json_without_limits: "json.loads(body)",
    runs_data_as_code: "eval(x)\npickle.loads(x)\nsubprocess.run(x)\nyaml.load(x)\nos.system(x)",
    compares_secrets: "a.secret == b\nx == digest\nsignature != given",
}


@pytest.mark.parametrize("rule", RULES, ids=title)
def test_the_rule_finds_a_violation(rule):
    code = BREAKING[rule]

    assert len(list(rule(ast.parse(code)))) >= code.count("\n") + 1


@pytest.mark.parametrize(
    "sign", ["|safe", "autoescape off", "safeseq", "unsafe-inline", "javascript:", "onclick="]
)
def test_no_template_disables_escaping(sign):
    found = [
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "proxy").rglob("*.html")
        if sign in path.read_text(encoding="utf-8")
    ]

    assert found == []
