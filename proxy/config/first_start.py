"""What a start without any configuration makes, each thing only where nothing of its kind exists.

So a second start finds everything in place, prints no secret and changes nothing.
"""

import datetime as dt
import gc
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import transaction

from proxy.models import ApiKey, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.record.errors import SchemaMismatch
from proxy.record.schema import check_migratable, check_schema
from proxy.sandbox import UPSTREAMS
from proxy.secrets import KEY_MARK, ConfigError

from .new_database import make_schema
from .reading import read_file

ADMIN: Final = "admin"
SANDBOX: Final = "sandbox"
SANDBOXES: Final = UPSTREAMS  # name: dialect
SANDBOX_ROUTES: Final = (
    # model, upstream, what the model becomes; empty: the sandbox acts by the name that came
    ("sandbox-chat*", "sandbox-chat", ""),
    ("sandbox-*", SANDBOX, ""),
    ("claude-*", SANDBOX, SANDBOX),  # never under a real model's name: no price of that applies
)
STARTER_PRICES: Final = Path(__file__).parents[1] / "data" / "prices.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider that is set up by its key in the environment alone."""

    name: str
    dialect: str
    key_variable: str
    url_variable: str
    base_url: str
    model: str
    """What ``claude-*`` becomes there; empty: the name the client sent."""


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
class Made:
    """What this start made, for the one time that it is printed."""

    key: str = ""
    admin_password: str = ""
    upstream: str = ""

    @property
    def anything(self) -> bool:
        return bool(self.key or self.admin_password or self.upstream)


class AdminPassword:
    """Of the user that a first start makes. Its hash takes 0.25 s, beside whatever goes on."""

    def __init__(self) -> None:
        self.text = settings.ADMIN_PASSWORD or secrets.token_urlsafe(15)
        hasher = ThreadPoolExecutor(1)
        self._hashed = hasher.submit(make_password, self.text)
        hasher.shutdown(wait=False)

    def make_user(self) -> None:
        """Waits for the hash."""
        get_user_model().objects.create(
            username=ADMIN, password=self._hashed.result(), is_staff=True, is_superuser=True
        )


def migrate() -> None:
    """Bring the schema to this version. ConfigError for one that migrating cannot mend."""
    if make_schema():
        return
    try:
        check_migratable()
        call_command("migrate", verbosity=0, interactive=False)
        gc.collect()  # the models as they were before and after each migration, in cycles
        check_schema()
    except SchemaMismatch as mismatch:
        raise ConfigError(str(mismatch)) from None


def _check_password() -> None:
    """What the admin would not take for a password, the environment cannot set. ConfigError."""
    try:
        if settings.ADMIN_PASSWORD:
            validate_password(settings.ADMIN_PASSWORD)
    except ValidationError as weak:
        raise ConfigError(f"BRIDGE_ADMIN_PASSWORD: {' '.join(weak.messages)}") from None


@transaction.atomic
def fill_gaps(
    sandbox_url: str,
    environ: Mapping[str, str] = os.environ,
    password: AdminPassword | None = None,
) -> Made:
    """Make the first team, key, admin user, prices and upstream where there is none.

    With a ``password`` somebody else makes the user, if ``admin_password`` tells that one is due.
    """
    made = Made()
    if not Team.objects.exists():
        _, made.key = ApiKey.issue(Team.objects.create(name="default"), "first")
    if not get_user_model().objects.filter(is_superuser=True).exists():
        _check_password()
        ours = password or AdminPassword()
        made.admin_password = ours.text
        if password is None:
            ours.make_user()
    if not Price.objects.filter(upstream=None).exists():
        _starter_prices()
    if _has_upstream():
        _drop_sandbox()
    else:
        made.upstream = _provider(environ) or _sandbox(sandbox_url)
    return made


def _has_upstream() -> bool:
    return Upstream.objects.exclude(name__in=SANDBOXES).exists()


def _starter_prices() -> None:
    shipped = read_file(STARTER_PRICES)
    Price.objects.bulk_create(
        Price(
            model=entry.model,
            since=entry.since,
            source=entry.source,
            **msgspec.structs.asdict(entry.usd),
        )
        for entry in shipped.prices
    )
    Revision.rise()  # bulk_create sends no signal


def _provider(environ: Mapping[str, str]) -> str:
    """Route ``claude-*`` to the first provider whose key is in the environment; its name, or ""."""
    for provider in PROVIDERS:
        key = environ.get(provider.key_variable, "").strip()
        if not key or key.startswith(KEY_MARK):  # a shell set up to call us: not a provider's key
            continue
        upstream = Upstream(
            name=provider.name,
            dialect=provider.dialect,
            base_url=environ.get(provider.url_variable, "").rstrip("/") or provider.base_url,
            secret={"env": provider.key_variable},
            profile=provider.name,
        )
        try:
            upstream.clean()
        except ValidationError as wrong:
            told = " ".join(wrong.messages)
            raise ConfigError(f"{provider.url_variable}: {told}") from None
        upstream.save()
        _drop_sandbox()
        _route("claude-*", upstream, provider.model)
        return provider.name
    return ""


def _sandbox(base_url: str) -> str:
    """Route everything to the sandbox; the name if that is news, else ""."""
    news = not Upstream.objects.filter(name__in=SANDBOXES).exists()
    for name, dialect in SANDBOXES.items():
        wanted = {"dialect": dialect, "base_url": base_url, "profile": "openai"}
        upstream = Upstream.objects.filter(name=name).first() or Upstream(name=name)
        if any(getattr(upstream, field) != value for field, value in wanted.items()):
            for field, value in wanted.items():
                setattr(upstream, field, value)
            upstream.save()
    if not news:
        return ""
    for model, name, target in SANDBOX_ROUTES:
        upstream = Upstream.objects.get(name=name)
        _route(model, upstream, target)
        free = {"upstream": upstream, "model": target, "input": 0, "output": 0}
        if target and not Price.objects.filter(upstream=upstream, model=target).exists():
            Price.objects.create(**free, since=dt.date(2026, 1, 1), source="a script costs nothing")
    return SANDBOX


def _drop_sandbox() -> None:
    """Where a real upstream answers, nothing may lead to the script any more."""
    sandboxes = Upstream.objects.filter(name__in=SANDBOXES)
    for upstream in sandboxes:
        Route.objects.filter(targets__upstream=upstream, managed=False).delete()
        upstream.delete()


def _route(model: str, upstream: Upstream, target: str) -> None:
    """Send a model name to this upstream alone."""
    route, _ = Route.objects.get_or_create(model=model, team=None)
    route.targets.all().delete()
    RouteTarget.objects.create(route=route, upstream=upstream, model=target)
