"""Check an installation of the gateway; each check reports a finding with a hint for the repair."""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
from django.conf import settings
from django.core import checks
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, connection
from django.db.models import F

from proxy.checks import unsafe_settings
from proxy.config.used_upstreams import used_upstreams
from proxy.counters.backends import CALLS_FILE, FILE
from proxy.counters.shared_file import replaced_files
from proxy.encryption.bodies import key_ids
from proxy.ledger.database.schema_check import check_schema
from proxy.ledger.errors import SchemaMismatch
from proxy.models import ApiKey, BodyKeyUse, DialectName, Exchange, Pause, Price, Route, RouteTarget
from proxy.models.config_revision import WATCHED
from proxy.models.setup.config_row_validation import USER, fetch_all, split_readable
from proxy.models.setup.keys import NO_SECRET
from proxy.models.setup.upstreams import SANDBOXES
from proxy.secrets import has_root

from . import data_directory
from .upstream_checks import TIMEOUT, Finding, check_upstream, check_web_search


class Readiness(msgspec.Struct):
    """The fields of the gateway's ``/readyz`` response that are reported."""

    status: str
    degraded: list[str]


def run_checks(*, stream: bool = True) -> Iterator[Finding]:
    """Run every check, the fastest first.

    ``stream``: request a few tokens from each upstream, to check streaming.
    """
    yield from _check_settings()
    yield from _check_files()
    yield _check_gateway()
    schema = _check_schema()
    yield schema
    if not schema.ok:
        return
    unreadable = list(_unreadable_rows())
    yield from unreadable
    yield from _check_body_keys()
    yield from _keys_without_secret()
    try:
        yield from _describe_routes()
        yield from _check_pauses()
        yield from _check_prices()
        yield _last_request()
        yield from _check_upstreams(stream=stream)
        yield from check_web_search()
    except (ObjectDoesNotExist, ArithmeticError, AttributeError, TypeError, ValueError):
        if not unreadable:
            raise
        hint = "First correct the rows that cannot be read."
        yield Finding("other checks", ok=False, text="cannot run", hint=hint)


def _check_settings() -> Iterator[Finding]:
    found = [*checks.run_checks(), *unsafe_settings("127.0.0.1")]
    for one in found:
        yield Finding(f"settings {one.id}", ok=False, text=str(one.msg), hint=str(one.hint or ""))
    if not found:
        yield Finding("settings", ok=True, text="all system checks pass")
    for variable in settings.BRIDGE_VARIABLES:
        for name in (variable.name, f"{variable.name}_FILE"):
            if name in os.environ:  # other variables have their defaults
                hidden = variable.secret and name == variable.name
                text = f"{'set' if hidden else repr(os.environ[name])}, from the environment"
                yield Finding(f"setting {name}", ok=None, text=text)


def _check_files() -> Iterator[Finding]:
    path = settings.DATA_DIR
    if not path.is_dir():
        yield Finding("data", ok=False, text=f"{path} does not exist", hint="serve creates it.")
        return
    open_to = [
        str(entry.relative_to(path.parent))
        for entry in (path, *path.iterdir())
        if stat.S_IMODE(entry.stat().st_mode) & 0o077
    ]
    text = f"open to other users: {', '.join(open_to)}" if open_to else f"{path} is private"
    hint = f"Run chmod -R go= {path}." if open_to else ""
    yield Finding("data", ok=not open_to, text=text, hint=hint)
    for name in (FILE, CALLS_FILE):
        if fault := _fault_of(path / name):
            hint = "The gateway makes it anew from the ledger when it uses it next."
            yield Finding(f"data {name}", ok=False, text=fault, hint=hint)
    for text in replaced_files(path):
        yield Finding("data files", ok=None, text=text)
    if not has_root():
        hint = "serve creates one, or set BRIDGE_SECRET_KEY."
        yield Finding("secret key", ok=False, text="does not exist yet", hint=hint)


def _fault_of(path: Path) -> str:
    """Return what is wrong with a shared SQLite file; "" for a sound or a missing one."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
            (verdict,) = file.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return f"{path.name} cannot be read: {error}" if path.exists() else ""
    return "" if verdict == "ok" else f"{path.name} is damaged: {verdict}"


def _check_gateway() -> Finding:
    """Check whether a gateway uses this data directory, and request its ``/readyz``."""
    url = data_directory.address_of(settings.DATA_DIR)
    if not url:
        text = f"none runs on {settings.DATA_DIR}"
        return Finding("gateway", ok=None, text=text, hint="manage.py serve starts one.")
    try:  # trust_env=False: connect directly, without an HTTP proxy from the environment
        response = httpx.get(f"{url}/readyz", timeout=TIMEOUT, trust_env=False)
        state = msgspec.json.decode(response.content, type=Readiness)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        text = f"{url} does not respond: {type(error).__name__}"
        return Finding("gateway", ok=False, text=text, hint="See its log.")
    text = f"listens on {url}, {state.status}"
    return Finding("gateway", ok=state.status == "ok", text=text, hint="; ".join(state.degraded))


def _check_body_keys() -> Iterator[Finding]:
    """Report the keys that encrypt texts, and those that are missing or stored with the data."""
    subject = "body keys"
    if missing := BodyKeyUse.missing():
        text = f"missing: {', '.join(missing)}; the texts that they encrypted cannot be read"
        hint = (
            "Add them to BRIDGE_BODY_KEYS; if they were destroyed on purpose, "
            "run manage.py encryptbodies --forget KEY."
        )
        yield Finding(subject, ok=False, text=text, hint=hint)
    file = os.environ.get("BRIDGE_BODY_KEYS_FILE")
    if file and Path(file).resolve().is_relative_to(settings.DATA_DIR.resolve()):
        text = f"{file} is in the data directory, whose backups then contain the keys"
        yield Finding(subject, ok=False, text=text, hint="Keep the file elsewhere.")
    if own := key_ids():
        text = f"texts are encrypted with key {own[0]}; the search is off"
        yield Finding(subject, ok=None, text=text)


def _check_schema() -> Finding:
    try:
        check_schema()
    except SchemaMismatch as mismatch:
        return Finding("database", ok=False, text=str(mismatch))
    except DatabaseError as error:
        text = str(error).strip().splitlines()[0]
        return Finding("database", ok=False, text=text, hint="See DATABASE_URL.")
    return Finding("database", ok=True, text=f"{connection.vendor}, schema is current")


def _unreadable_rows() -> Iterator[Finding]:
    """Report configuration rows that the gateway ignores, because they cannot be decoded."""
    users = {USER: list(USER.objects.only("username", "is_active"))}
    rows = {model: fetch_all(model) for model in WATCHED} | users
    for one in split_readable(rows, query_missing=True)[1]:
        hint = "The row and its dependents are not in effect: correct it in the admin or by SQL."
        text = f"{one.field} cannot be read: {one.why}"
        yield Finding(f"{one.kind} {one.id}", ok=False, text=text, hint=hint)


def _keys_without_secret() -> Iterator[Finding]:
    """Report gateway keys without a secret, which no client can use.

    Rows for the replaced secrets of rotated keys are left out.
    """
    keys = ApiKey.objects.filter(NO_SECRET, revoked=None, successor=None)
    for team, name in keys.order_by("team__name", "name").values_list("team__name", "name"):
        hint = f"manage.py createkey --team {team} --name {name} creates one."
        text = "has no secret, so no client can use it"
        yield Finding(f"key {team}/{name}", ok=False, text=text, hint=hint)


def _describe_routes() -> Iterator[Finding]:
    """Report the targets of each route, and how requests to these targets are translated."""
    for route in Route.objects.select_related("team").prefetch_related("targets__upstream"):
        targets = [target for target in route.targets.all() if target.upstream.enabled]
        owner = f" of team {route.team}" if route.team else ""
        text = "; else ".join(_describe_target(target) for target in targets) or "has no upstream"
        hint = "" if targets else "All its upstreams are disabled, or it has no target."
        ok = None if targets else False
        yield Finding(f"route {route.model}{owner}", ok=ok, text=text, hint=hint)


def _describe_target(target: RouteTarget) -> str:
    upstream = target.upstream
    model = f"model {target.model}" if target.model else "the model that the client named"
    if upstream.dialect == DialectName.ANTHROPIC:
        how = "untranslated"
    else:
        how = f"by {upstream.get_dialect_display()}"
    return f"upstream {upstream}, {model}, {how}, profile {upstream.profile}"


def _check_pauses() -> Iterator[Finding]:
    for pause in Pause.active():
        ends = f"until {pause.ends:%Y-%m-%d %H:%M} UTC" if pause.ends else "without an end"
        text = f"paused {ends}: {pause.message}"
        hint = "Delete the pause in the admin, or run manage.py pause --resume."
        yield Finding(f"pause {pause}", ok=False, text=text, hint=hint)


def _last_request() -> Finding:
    """Report the newest request and its client, to show whether clients reach the gateway."""
    last = Exchange.objects.order_by("-created").first()
    if last is None:
        hint = "Configure a client with the settings below and run doctor again."
        return Finding("traffic", ok=None, text="no request was received yet", hint=hint)
    client = " ".join(filter(None, (last.client_name, last.client_version))) or "a client"
    sent_to = f"model {last.model_upstream} of {last.upstream}" if last.upstream else "no upstream"
    text = (
        f"the last request was received at {last.created:%Y-%m-%d %H:%M:%S} UTC from {client} with "
        f"key {last.names.team}/{last.names.key}: {last.model_requested or 'no model'}, sent to "
        f"{sent_to}, {last.outcome or 'running'}"
    )
    return Finding("traffic", ok=None, text=text)


def _check_prices() -> Iterator[Finding]:
    priced = set(Price.objects.values_list("upstream__name", "model"))
    targets = RouteTarget.objects.exclude(model="").exclude(upstream__name__in=SANDBOXES)
    for upstream, model in sorted(set(targets.values_list("upstream__name", "model"))):
        if not {(upstream, model), (None, model)} & priced:
            text = f"{model} of {upstream} has no price, so its cost is unknown"
            yield Finding("price", ok=False, text=text, hint="Add [[prices]] to bridge.toml.")
    for price in Price.objects.filter(cache_read__gt=F("input")).select_related("upstream"):
        text = f"{price.model} of {price.upstream or 'any'}: cached input costs more than input"
        hint = "Check whether cache_read and input are swapped."
        yield Finding("price", ok=False, text=text, hint=hint)


def _check_upstreams(*, stream: bool) -> Iterator[Finding]:
    upstreams = list(used_upstreams())
    if not upstreams:
        hint = "See docs/start.md."
        yield Finding("routes", ok=False, text="no route has an upstream", hint=hint)
    for upstream in upstreams:
        if upstream.name in SANDBOXES:
            text = "the sandbox, a script without a model"
            yield Finding(f"upstream {upstream}", ok=None, text=text)
        else:
            yield from check_upstream(upstream, stream=stream)
