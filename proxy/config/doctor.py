"""Examine an installation: each examination says what it saw and what to do about it."""

import email.utils
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec
from django.conf import settings
from django.core import checks
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import F

from proxy.checks import unsafe_settings
from proxy.models import ApiKey, DialectName, Exchange, Price, Route, RouteTarget, Upstream
from proxy.models.keys import NO_SECRET
from proxy.models.revision import WATCHED
from proxy.secrets import ConfigError, has_root
from proxy.soundness import USER, judged, rows_of
from translator.profiles import PROFILES

from . import datadir
from .first_start import SANDBOXES
from .upstreams import used_upstreams

SKEW_S: Final = 30
BUFFERED_S: Final = 0.01
"""Several events within so short a time came from a buffer, not from a model."""
PATIENCE: Final = httpx.Timeout(30, connect=5)
PROMPT: Final = "Count from one to twenty in words."
STREAMED_TOKENS: Final = 64

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "responses": {"input": PROMPT},
    "chat": {"messages": [{"role": "user", "content": PROMPT}]},
    "anthropic": {"messages": [{"role": "user", "content": PROMPT}]},
}
ENDPOINTS: Final = {
    "responses": ("/models", "/responses"),
    "chat": ("/models", "/chat/completions"),
    "anthropic": ("/v1/models", "/v1/messages"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``ok`` None: nothing to judge, only to know."""

    subject: str
    ok: bool | None
    says: str
    hint: str = ""


class Readiness(msgspec.Struct):
    """What ``/readyz`` answers, as far as it is read here."""

    status: str
    degraded: list[str]


def examine(*, stream: bool = True) -> Iterator[Finding]:
    """Every examination, cheapest first; ``stream`` asks each upstream for a few tokens."""
    yield from _settings()
    yield from _files()
    yield _gateway()
    schema = _schema()
    yield schema
    if not schema.ok:
        return
    unread = list(_unread())
    yield from unread
    yield from _keys_without_secret()
    try:
        yield from _routes()
        yield from _prices()
        yield _traffic()
        yield from _upstreams(stream=stream)
    except (ObjectDoesNotExist, ArithmeticError, AttributeError, TypeError, ValueError):
        if not unread:
            raise
        hint = "Mend the rows that cannot be read first."
        yield Finding("the rest", ok=False, says="cannot be examined", hint=hint)


def _settings() -> Iterator[Finding]:
    found = [*checks.run_checks(), *unsafe_settings("127.0.0.1")]
    for one in found:
        yield Finding(f"settings {one.id}", ok=False, says=str(one.msg), hint=str(one.hint or ""))
    if not found:
        yield Finding("settings", ok=True, says="no system check complains")
    for variable in settings.BRIDGE_VARIABLES:
        for name in (variable.name, f"{variable.name}_FILE"):
            if name in os.environ:  # the others are as the table of the docs says
                hidden = variable.secret and name == variable.name
                says = f"{'set' if hidden else repr(os.environ[name])}, from the environment"
                yield Finding(f"setting {name}", ok=None, says=says)


def _files() -> Iterator[Finding]:
    path = settings.DATA_DIR
    if not path.is_dir():
        yield Finding("data", ok=False, says=f"{path} does not exist", hint="serve makes it.")
        return
    open_to = [
        str(entry.relative_to(path.parent))
        for entry in (path, *path.iterdir())
        if stat.S_IMODE(entry.stat().st_mode) & 0o077
    ]
    says = f"open to other users: {', '.join(open_to)}" if open_to else f"{path} is private"
    yield Finding("data", ok=not open_to, says=says, hint="chmod -R go= it." if open_to else "")
    if not has_root():
        hint = "serve makes one, or set BRIDGE_SECRET_KEY."
        yield Finding("secret key", ok=False, says="there is none yet", hint=hint)


def _gateway() -> Finding:
    """Whether a gateway runs on this data directory, and what it reports of itself."""
    url = datadir.address_of(settings.DATA_DIR)
    if not url:
        says = f"none runs on {settings.DATA_DIR}"
        return Finding("gateway", ok=None, says=says, hint="manage.py serve starts one.")
    try:  # itself, and not by way of the environment's proxy
        answer = httpx.get(f"{url}/readyz", timeout=PATIENCE, trust_env=False)
        state = msgspec.json.decode(answer.content, type=Readiness)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        says = f"{url} does not answer: {type(error).__name__}"
        return Finding("gateway", ok=False, says=says, hint="See its log.")
    says = f"listens on {url}, {state.status}"
    return Finding("gateway", ok=state.status == "ok", says=says, hint="; ".join(state.degraded))


def _schema() -> Finding:
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        says = str(error).strip().splitlines()[0]
        return Finding("database", ok=False, says=says, hint="See DATABASE_URL.")
    if missing:
        says = f"{len(missing)} migrations are missing"
        return Finding("database", ok=False, says=says, hint="Run manage.py migrate, or serve.")
    return Finding("database", ok=True, says=f"{connection.vendor}, schema is current")


def _unread() -> Iterator[Finding]:
    """Rows that the gateway leaves out."""
    users = {USER: list(USER.objects.only("username", "is_active"))}
    rows = {model: rows_of(model) for model in WATCHED} | users
    for one in judged(rows, ask=True)[1]:
        hint = "It is left out, and whatever depends on it: mend it, in the admin or by SQL."
        says = f"{one.field} cannot be read: {one.why}"
        yield Finding(f"{one.kind} {one.id}", ok=False, says=says, hint=hint)


def _keys_without_secret() -> Iterator[Finding]:
    """Nobody can use them. An old secret of a rotated key never gets another one."""
    keys = ApiKey.objects.filter(NO_SECRET, revoked=None, successor=None)
    for team, name in keys.order_by("team__name", "name").values_list("team__name", "name"):
        hint = f"manage.py createkey --team {team} --name {name} gives it one."
        says = "it has no secret, so it opens nothing"
        yield Finding(f"key {team}/{name}", ok=False, says=says, hint=hint)


def _routes() -> Iterator[Finding]:
    """Where each leads, and by which translation."""
    for route in Route.objects.select_related("team").prefetch_related("targets__upstream"):
        targets = [target for target in route.targets.all() if target.upstream.enabled]
        whose = f" of team {route.team}" if route.team else ""
        says = "; else ".join(_way(target) for target in targets) or "leads nowhere"
        hint = "" if targets else "Its upstreams are switched off, or it has none."
        ok = None if targets else False
        yield Finding(f"route {route.model}{whose}", ok=ok, says=says, hint=hint)


def _way(target: RouteTarget) -> str:
    upstream = target.upstream
    name = f"as {target.model}" if target.model else "under the name that was asked for"
    if upstream.dialect == DialectName.ANTHROPIC:
        how = "untranslated"
    else:
        how = f"by {upstream.get_dialect_display()}"
    return f"{upstream} {name}, {how}, profile {upstream.profile}"


def _traffic() -> Finding:
    """Whether clients arrive here at all: the newest request, and whose it was."""
    last = Exchange.objects.order_by("-created").first()
    if last is None:
        hint = "Give a client the settings below, and ask again."
        return Finding("traffic", ok=None, says="no request has arrived yet", hint=hint)
    client = " ".join(filter(None, (last.client_name, last.client_version))) or "a client"
    answered = f"{last.upstream} {last.model_upstream}" if last.upstream else "nobody"
    says = (
        f"the last request came at {last.created:%Y-%m-%d %H:%M:%S} UTC from {client} of "
        f"{last.team}/{last.key_name}: {last.model_requested or 'no model'}, answered by "
        f"{answered}, {last.outcome or 'running'}"
    )
    return Finding("traffic", ok=None, says=says)


def _prices() -> Iterator[Finding]:
    priced = set(Price.objects.values_list("upstream__name", "model"))
    targets = RouteTarget.objects.exclude(model="").exclude(upstream__name__in=SANDBOXES)
    for upstream, model in sorted(set(targets.values_list("upstream__name", "model"))):
        if not {(upstream, model), (None, model)} & priced:
            says = f"{model} of {upstream} has none: its cost stays unknown"
            yield Finding("price", ok=False, says=says, hint="Add [[prices]] to bridge.toml.")
    for price in Price.objects.filter(cache_read__gt=F("input")).select_related("upstream"):
        says = f"{price.model} of {price.upstream or 'any'}: a hit costs more than fresh input"
        yield Finding("price", ok=False, says=says, hint="Are cache_read and input mixed up?")


def _upstreams(*, stream: bool) -> Iterator[Finding]:
    upstreams = list(used_upstreams())
    if not upstreams:
        yield Finding("routes", ok=False, says="no route leads anywhere", hint="See docs/start.md.")
    for upstream in upstreams:
        if upstream.name in SANDBOXES:
            yield Finding(f"upstream {upstream}", ok=None, says="the sandbox: a script, no model")
        else:
            yield from _upstream(upstream, stream=stream)


def _upstream(upstream: Upstream, *, stream: bool) -> Iterator[Finding]:
    subject = f"upstream {upstream}"
    try:
        upstream.clean()
        secret = upstream.credential()
    except ValidationError as wrong:
        yield Finding(subject, ok=False, says=" ".join(wrong.messages))
        return
    except ConfigError as missing:
        hint = "The environment of serve must have it, and that of doctor, to check it."
        yield Finding(subject, ok=False, says=str(missing), hint=hint)
        return
    if upstream.allow_http and upstream.base_url.startswith("http://"):
        hint = "Use https wherever the network is not yours."
        yield Finding(subject, ok=False, says="the key travels in clear", hint=hint)
    with httpx.Client(headers=_headers(upstream, secret), timeout=PATIENCE) as client:
        try:
            yield from _reachable(subject, upstream, client)
            if stream:
                yield from _streaming(subject, upstream, client)
        except httpx.HTTPError as error:
            says = f"{type(error).__name__}: {upstream.base_url} cannot be reached"
            yield Finding(subject, ok=False, says=says, hint="Check address, proxy and firewall.")


def _headers(upstream: Upstream, secret: str) -> dict[str, str]:
    if not secret:
        return {}
    if upstream.dialect == "anthropic":
        return {"x-api-key": secret, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {secret}"}


def _reachable(subject: str, upstream: Upstream, client: httpx.Client) -> Iterator[Finding]:
    answer = client.get(upstream.base_url + ENDPOINTS[upstream.dialect][0])
    refused = answer.status_code in {401, 403}
    hint = "The key is refused; see api_key." if refused else ""
    ok = not refused and answer.status_code < 500
    yield Finding(subject, ok=ok, says=f"reachable, answers {answer.status_code}", hint=hint)
    told = email.utils.parsedate_tz(answer.headers.get("date", ""))
    if told:
        skew = abs(email.utils.mktime_tz(told) - time.time())
        says = f"differs from {upstream}'s by {skew:.0f} s"
        hint = "Run a time service: periods, expiries and ids depend on the clock."
        yield Finding("clock", ok=skew < SKEW_S, says=says, hint=hint if skew >= SKEW_S else "")


def _streaming(subject: str, upstream: Upstream, client: httpx.Client) -> Iterator[Finding]:
    """One short stream, to see whether something on the way collects it first."""
    target = RouteTarget.objects.filter(upstream=upstream).exclude(model="").first()
    if target is None:
        yield Finding(subject, ok=None, says="streaming not tried: no route names a model for it")
        return
    body = {"model": target.model, "stream": True, **BODIES[upstream.dialect]}
    body[_limit_field(upstream)] = STREAMED_TOKENS
    arrivals = []
    url = upstream.base_url + ENDPOINTS[upstream.dialect][1]
    with client.stream("POST", url, json=body) as answer:
        if answer.status_code != 200:
            says = f"a short stream from {target.model} answers {answer.status_code}"
            yield Finding(subject, ok=False, says=says)
            return
        for _ in answer.iter_bytes():
            arrivals.append(time.monotonic())  # noqa: PERF401 - each read has its own time
    spread = arrivals[-1] - arrivals[0] if arrivals else 0.0
    says = f"{target.model} streamed in {len(arrivals)} reads over {spread:.2f} s"
    buffered = len(arrivals) < 2 or spread < BUFFERED_S
    hint = "Something on the way buffers; see docs/operate.md." if buffered else ""
    yield Finding(subject, ok=not buffered, says=says, hint=hint)


def _limit_field(upstream: Upstream) -> str:
    if upstream.dialect == "responses":
        return "max_output_tokens"
    profile = PROFILES.get(upstream.profile, PROFILES["generic"])
    return profile.max_tokens_field if upstream.dialect == "chat" else "max_tokens"
