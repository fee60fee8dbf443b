"""Upstreams, routes and prices: where a request goes and what it costs."""

import ipaddress
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import models

from proxy.sealing import unseal
from proxy.secrets import ConfigError, Secret, resolve
from translator.errors import TranslatorError
from translator.profiles import profile_with

from .keys import Team

SEALED = "sealed"
"""The key of ``Upstream.secret`` under which a secret stands that was typed into the admin."""
TIMEOUTS = ("connect_s", "first_byte_s", "idle_s", "total_s")
RESERVED = {
    "model": "the route's targets name the model; leave it out",
    "stream": "the gateway says what is streamed, and hears the answer so; leave it out",
}
"""What ``extra_body`` may not say, and why: the record would tell of another request."""
ENDPOINTS = ("/chat/completions", "/responses", "/v1/messages", "/messages")
"""What is appended to a base URL."""


def check_base_url(url: str, *, allow_http: bool) -> None:
    """Refuse a base URL that could send a key astray; raises ValidationError.

    Plain http is for this machine, private networks and single-label names (a vLLM next door).
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if "@" in parts.netloc:  # first, since what follows repeats the URL
        raise ValidationError("a base URL holds no user or password; name the key in api_key")
    if parts.scheme not in {"http", "https"} or not host or url != url.strip():
        raise ValidationError(f"base URL {url!r} must look like https://host/path")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValidationError(f"base URL {url!r} must end before any ? or #")
    if parts.scheme == "http" and not allow_http and not _is_near(host):
        raise ValidationError(
            f"base URL {url!r} sends the key in clear to a public host; use https, "
            "or set allow_http = true"
        )


def check_endpoint(url: str, dialect: str) -> None:
    """Refuse a base URL that holds what is appended to it: each request would end in a 404."""
    base = url.rstrip("/")
    for ending in ENDPOINTS:
        base = base.removesuffix(ending)
    if dialect == DialectName.ANTHROPIC:
        base = base.removesuffix("/v1")
    if base != url.rstrip("/"):
        raise ValidationError(
            f"base URL {url!r} names the endpoint, which is appended to it; write {base!r}"
        )


def _is_near(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host.rstrip(".")
    return address.is_loopback or address.is_private


class DialectName(models.TextChoices):
    RESPONSES = "responses", "OpenAI Responses"
    CHAT = "chat", "Chat Completions"
    ANTHROPIC = "anthropic", "Anthropic Messages"


class Leaving(models.TextChoices):
    """What becomes of an answer whose client has left."""

    ABORT = "abort", "Hang up at once"
    DRAIN = "drain", "Hear it to its end"


class ConnectionReuse(models.TextChoices):
    """Whose requests may follow each other on one connection to an upstream."""

    SHARED = "shared", "Of all keys"
    KEY = "key", "Of the same key"
    NEVER = "never", "None: a new connection for each request"


class Upstream(models.Model):
    """A server that answers.

    Its secret is referred to (an environment variable or a file), or sealed for this base URL.
    """

    name = models.SlugField(max_length=64, unique=True)
    dialect = models.CharField(max_length=16, choices=DialectName.choices)
    base_url = models.CharField(
        max_length=500
    )  # checked in clean(): URLField refuses "http://vllm"
    secret = models.JSONField(
        default=dict,
        blank=True,
        help_text='{"env": "OPENAI_API_KEY"} or {"file": "/run/secrets/x"}',
    )
    profile = models.CharField(max_length=32, default="generic")
    capabilities = models.JSONField(default=dict, blank=True)
    timeouts = models.JSONField(
        default=dict, blank=True, help_text="connect_s, first_byte_s, idle_s, total_s"
    )
    extra_body = models.JSONField(default=dict, blank=True)  # fixed fields added after translation
    when_client_leaves = models.CharField(
        max_length=8, choices=Leaving.choices, default=Leaving.ABORT
    )
    connection_reuse = models.CharField(
        max_length=8, choices=ConnectionReuse.choices, default=ConnectionReuse.SHARED
    )
    allow_http = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """What a form and bridge.toml both refuse: a bad URL, capability, timeout or secret."""
        self.check_fields()
        self.check_secret()
        if self.is_sealed:
            try:
                unseal(self.secret[SEALED], self.base_url)
            except ConfigError as wrong:
                raise ValidationError({"base_url": str(wrong)}) from None

    def check_fields(self) -> None:
        """The same of everything but the secret."""
        try:
            check_base_url(self.base_url, allow_http=self.allow_http)
            check_endpoint(self.base_url, self.dialect)
        except ValidationError as wrong:
            raise ValidationError({"base_url": wrong.messages}) from None
        self._check_objects()
        for field, capabilities in (("profile", {}), ("capabilities", self.capabilities)):
            try:
                profile_with(self.profile, capabilities)
            except TranslatorError as wrong:
                raise ValidationError({field: str(wrong)}) from None
        for name, seconds in self.timeouts.items():
            if name not in TIMEOUTS:
                told = f"unknown timeout {name!r}; known: {', '.join(TIMEOUTS)}"
                raise ValidationError({"timeouts": told})
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
                told = f"timeout {name!r} is {seconds!r}; seconds are expected"
                raise ValidationError({"timeouts": told})
        self._check_extra_body()

    def credential(self) -> Secret:
        """The secret itself; empty where there is none. Raises ConfigError naming the place."""
        try:
            self.check_secret()
        except ValidationError as wrong:
            raise ConfigError(" ".join(wrong.messages)) from None
        if self.is_sealed:
            return unseal(self.secret[SEALED], self.base_url)
        return resolve(self.secret)

    @property
    def secret_file(self) -> str:
        """The file that holds the secret; empty: it is elsewhere."""
        path = self.secret.get("file") if isinstance(self.secret, dict) else None
        return path if isinstance(path, str) else ""

    @property
    def is_sealed(self) -> bool:
        """Whether the secret stands in the database, sealed."""
        return isinstance(self.secret, dict) and SEALED in self.secret

    def _check_objects(self) -> None:
        for field in ("capabilities", "timeouts", "extra_body"):
            if not isinstance(found := getattr(self, field), dict):
                raise ValidationError({field: f"an object is expected, found {found!r}"})

    def _check_extra_body(self) -> None:
        for name, why in RESERVED.items():
            if name in self.extra_body:
                told = f"{name!r} is {self.extra_body[name]!r}; {why}"
                raise ValidationError({"extra_body": told})

    def check_secret(self) -> None:
        """Whether it is a place; not whether there is a secret at this place."""
        if self.secret != {} and (
            not isinstance(self.secret, dict)
            or len(self.secret) != 1
            or not set(self.secret) <= {"env", "file", SEALED}
            or not all(isinstance(place, str) and place for place in self.secret.values())
        ):
            raise ValidationError('a secret is {"env": "NAME"} or {"file": "/path"}')


class Route(models.Model):
    """A model name or glob, and its targets. Exact names win over globs, then ``position``."""

    model = models.CharField(max_length=200, help_text='What clients ask for: "claude-*".')
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE)  # null: all
    position = models.PositiveIntegerField(default=0)
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["position", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "team"], name="route_model_team", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return self.model

    def clean(self) -> None:
        """One route for one name and team, in words that name the other one."""
        twin = Route.objects.filter(model=self.model, team=self.team).exclude(pk=self.pk).first()
        if twin is not None:
            whose = f"team {self.team}" if self.team else "all teams"
            where = "bridge.toml" if twin.managed else "the admin"
            raise ValidationError(
                f"model {self.model!r} has a route for {whose} already: "
                f"the one at position {twin.position}, from {where}"
            )


class RouteTarget(models.Model):
    """One upstream and model of a route; the next is tried only before the first byte."""

    route = models.ForeignKey(Route, on_delete=models.CASCADE, related_name="targets")
    upstream = models.ForeignKey(Upstream, on_delete=models.CASCADE)
    model = models.CharField(max_length=200, blank=True)  # empty: the name the client sent
    weight = models.PositiveIntegerField(default=1)
    position = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name = "target"
        ordering = ["position", "id"]

    def __str__(self) -> str:
        return f"{self.upstream} {self.model or '*'}"


class Price(models.Model):
    """What one model costs from a day on, in US dollars per million tokens. Never overwritten."""

    upstream = models.ForeignKey(Upstream, null=True, blank=True, on_delete=models.CASCADE)
    # null: any upstream that offers the model (the shipped starter table)
    model = models.CharField(max_length=200)
    since = models.DateField()
    input = models.DecimalField(max_digits=14, decimal_places=6)
    output = models.DecimalField(max_digits=14, decimal_places=6)
    cache_read = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    cache_write_5m = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    cache_write_1h = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    # null: charged as plain input
    source = models.CharField(max_length=300, blank=True)
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["model", "-since"]
        constraints = [
            models.UniqueConstraint(
                fields=["upstream", "model", "since"], name="price_dated", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.model} since {self.since}"
