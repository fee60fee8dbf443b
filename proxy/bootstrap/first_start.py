"""Create what the gateway needs at its first start: team, key, admin user, prices and upstream.

Each of them is created only if there is none of its kind, so a second start prints no secret and
changes nothing.
"""

import datetime as dt
import gc
import json
import os
import secrets
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import transaction

from proxy.config.load import starter_prices
from proxy.ledger.database.schema_check import check_migratable, check_schema, has_all_migrations
from proxy.ledger.errors import SchemaMismatch
from proxy.models import ApiKey, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.models.setup.upstreams import SANDBOXES
from proxy.permissions import roles
from proxy.secrets import KEY_MARK, ConfigError

ADMIN: Final = "admin"
SANDBOX: Final = "sandbox"
SANDBOX_ROUTES: Final = (
    # Model glob, upstream, target model. Empty target model: the sandbox gets the client's model,
    # by which it chooses its behavior.
    ("sandbox-chat*", "sandbox-chat", ""),
    ("sandbox-*", SANDBOX, ""),
    # The target model has a name of its own, so that no price of a real model applies.
    ("claude-*", SANDBOX, SANDBOX),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider that the first start configures if its API key is in the environment."""

    name: str
    dialect: str
    key_variable: str
    url_variable: str
    base_url: str
    model: str
    """The target model of the route for ``claude-*``; empty: the model that the client sent."""


PROVIDERS: Final = (
    Provider(
        name="openai",
        dialect="responses",
        key_variable="OPENAI_API_KEY",
        url_variable="OPENAI_BASE_URL",
        base_url="https://api.openai.com/v1",
        model=settings.OPENAI_MODEL,
    ),
    Provider(
        name="anthropic",
        dialect="anthropic",
        key_variable="ANTHROPIC_API_KEY",
        url_variable="ANTHROPIC_BASE_URL",
        base_url="https://api.anthropic.com",
        model="",
    ),
)


@dataclass(slots=True)
class BootstrapResult:
    """The secrets and the upstream that this start created, to be printed once."""

    key: str = ""
    admin_password: str = ""
    upstream: str = ""

    @property
    def anything(self) -> bool:
        return bool(self.key or self.admin_password or self.upstream)


class AdminPassword:
    """The password of the first admin user. A thread computes its hash, which takes 0.25 s."""

    def __init__(self) -> None:
        self.text = settings.ADMIN_PASSWORD or secrets.token_urlsafe(15)
        hasher = ThreadPoolExecutor(1)
        self._hashed = hasher.submit(make_password, self.text)
        hasher.shutdown(wait=False)

    def make_user(self) -> None:
        """Create the admin user; wait for the hash of the password if necessary."""
        get_user_model().objects.create(
            username=ADMIN, password=self._hashed.result(), is_staff=True, is_superuser=True
        )


def migrate() -> None:
    """Migrate the database schema to this version. Raises ConfigError if that is not possible.

    Most starts find a database of this version; then Django's command does not run, because it
    takes 0.2 s of CPU time also without a migration.
    """
    try:
        if not (has_all_migrations() and roles.are_complete()):
            check_migratable()
            call_command("migrate", verbosity=0, interactive=False)
            # This frees the historical models of the migrations, which are reference cycles.
            gc.collect()
        check_schema()
    except SchemaMismatch as mismatch:
        raise ConfigError(str(mismatch)) from None


def _check_password() -> None:
    """Raise ConfigError if BRIDGE_ADMIN_PASSWORD violates the password rules of the admin."""
    try:
        if settings.ADMIN_PASSWORD:
            validate_password(settings.ADMIN_PASSWORD)
    except ValidationError as weak:
        raise ConfigError(f"BRIDGE_ADMIN_PASSWORD: {' '.join(weak.messages)}") from None


@transaction.atomic
def create_missing(
    sandbox_url: str,
    environ: Mapping[str, str] = os.environ,
    password: AdminPassword | None = None,
) -> BootstrapResult:
    """Create the first team with a key, admin user, prices and upstream, each if there is none.

    With ``password``, this function does not create the admin user: the caller must do that if the
    result has an ``admin_password``.
    """
    made = BootstrapResult()
    if not Team.objects.exists():
        _, made.key = ApiKey.issue(Team.objects.create(name="default"), "first")
    if not get_user_model().objects.filter(is_superuser=True).exists():
        _check_password()
        admin_password = password or AdminPassword()
        made.admin_password = admin_password.text
        if password is None:
            admin_password.make_user()
    if not Price.objects.filter(upstream=None).exists():
        create_starter_prices()
    if _has_upstream():
        _delete_sandbox()
    else:
        made.upstream = _create_provider(environ) or _create_sandbox(sandbox_url)
    return made


def _has_upstream() -> bool:
    return Upstream.objects.exclude(name__in=SANDBOXES).exists()


def create_starter_prices() -> None:
    """Create the prices that the package contains, for every upstream."""
    Price.objects.bulk_create(Price(**values) for values in starter_prices())
    Revision.bump()  # needed because bulk_create sends no post_save signal


def _create_provider(environ: Mapping[str, str]) -> str:
    """Route ``claude-*`` to the first provider whose API key is in the environment.

    Returns the provider's name; "" if there is no such provider.
    """
    for provider in PROVIDERS:
        key = environ.get(provider.key_variable, "").strip()
        # KEY_MARK begins a key of this gateway, which is not a provider's key.
        if not key or key.startswith(KEY_MARK):
            continue
        upstream = Upstream(
            name=provider.name,
            dialect=provider.dialect,
            base_url=environ.get(provider.url_variable, "").rstrip("/") or provider.base_url,
            secret={"env": provider.key_variable},
            profile=provider.name,
        )
        try:
            upstream.full_clean(validate_unique=False, validate_constraints=False)
        except ValidationError as wrong:
            messages = " ".join(wrong.messages)
            raise ConfigError(f"{provider.url_variable}: {messages}") from None
        upstream.save()
        _delete_sandbox()
        _create_route("claude-*", upstream, provider.model)
        return provider.name
    return ""


def _create_sandbox(base_url: str) -> str:
    """Create or update the upstreams of the built-in sandbox, which simulates a model.

    Returns the name of the sandbox if its upstreams are new, else "".
    """
    is_new = not Upstream.objects.filter(name__in=SANDBOXES).exists()
    for name, dialect in SANDBOXES.items():
        expected = {"dialect": dialect, "base_url": base_url, "profile": "openai"}
        upstream = Upstream.objects.filter(name=name).first() or Upstream(name=name)
        if any(getattr(upstream, field) != value for field, value in expected.items()):
            for field, value in expected.items():
                setattr(upstream, field, value)
            upstream.save()
    if not is_new:
        return ""
    for model, name, target in SANDBOX_ROUTES:
        upstream = Upstream.objects.get(name=name)
        _create_route(model, upstream, target)
        free = {"upstream": upstream, "model": target, "input": 0, "output": 0}
        if target and not Price.objects.filter(upstream=upstream, model=target).exists():
            Price.objects.create(**free, since=dt.date(2026, 1, 1), source="a script costs nothing")
    return SANDBOX


def _delete_sandbox() -> None:
    """Delete the sandbox upstreams, their targets, and the routes that have no other target."""
    sandboxes = Upstream.objects.filter(name__in=SANDBOXES)
    others = RouteTarget.objects.exclude(upstream__in=sandboxes)
    routes = Route.objects.filter(targets__upstream__in=sandboxes, managed=False)
    routes.exclude(targets__in=others).delete()
    sandboxes.delete()


def _create_route(model: str, upstream: Upstream, target: str) -> None:
    """Route a model name or glob to this upstream only."""
    route, _ = Route.objects.get_or_create(model=model, team=None)
    route.targets.all().delete()
    RouteTarget.objects.create(route=route, upstream=upstream, model=target)


MODEL: Final = "claude-sonnet-5-5"


def base_url(host: str, port: int) -> str:
    """Return the URL by which clients on the same machine reach this bind address."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - the address is only compared  # nosec B104
    named = reachable.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{named}:{port}"


def first_start_message(made: BootstrapResult, url: str, *, password_is_new: bool) -> str:
    """Return the message with the new secrets, of which the gateway stores only hashes.

    ``password_is_new``: the password was generated, not taken from BRIDGE_ADMIN_PASSWORD.
    """
    parts = []
    if made.key or made.admin_password:
        parts.append("First start. The following secrets are shown only once; save them.")
    if made.key:
        parts += [
            f"Gateway key:     {made.key}   (team default)",
            f"curl:\n  {_curl(url, made.key)}",
            f"Claude Code:\n  ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={made.key} claude",
            f"Python SDK (after pip install anthropic):\n  {_sdk(url, made.key)}",
        ]
    if made.admin_password:
        password = made.admin_password if password_is_new else "(from BRIDGE_ADMIN_PASSWORD)"
        parts.append(f"Admin:           {url}/admin/\n  user {ADMIN}, password {password}")
    if made.upstream and made.upstream != SANDBOX:
        parts.append(f"Upstream:        claude-* is routed to {made.upstream}.")
    return "\n\n".join(parts)


DATABASE_UNAVAILABLE: Final = (
    "warning: {cause}\n"
    "The gateway serves the keys it already knows, and tries the database each second."
)
SANDBOX_NOTICE: Final = """\
SANDBOX: responses come from a script on this machine, not from a model.
  For real responses: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or write a bridge.toml
  (docs/start.md) and start with --config bridge.toml."""


def _curl(url: str, key: str) -> str:
    body = {
        "model": MODEL,
        "max_tokens": 1024,
        "stream": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    headers = (
        "content-type: application/json",
        "anthropic-version: 2023-06-01",
        f"x-api-key: {key}",
    )
    flags = " ".join(f"-H {shlex.quote(header)}" for header in headers)
    return f"curl -N {url}/v1/messages {flags} -d {shlex.quote(json.dumps(body))}"


def _sdk(url: str, key: str) -> str:
    code = (
        f'import anthropic; print(anthropic.Anthropic(base_url="{url}", api_key="{key}")'
        f'.messages.create(model="{MODEL}", max_tokens=1024, '
        'messages=[{"role": "user", "content": "Hello"}]).content)'
    )
    return f"python3 -c {shlex.quote(code)}"
