"""Upstreams: the servers to which requests are sent, with their API, secret and timeouts."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models

from proxy.encryption.upstream_secrets import decrypt_secret, encrypt_secret
from proxy.secrets import ConfigError, Secret, resolve
from proxy.url_hosts import host_error, is_private
from translator.capabilities import profile_with
from translator.errors import TranslatorError

from .columns import SEALED, SecretColumn, Timeouts, TypedJSON
from .credential_types import AnySettings, CommandSettings, check_extra, parse_credentials
from .upstream_connection import Connection, check_connection, secret_files_in

API_VERSION = r"^(20\d\d-\d\d-\d\d(-preview)?|preview|latest)\Z"
"""The values of ``api-version`` that Azure accepts."""
RESERVED = {
    "model": "the route's targets name the model; leave it out",
    "stream": "the gateway decides whether a response is streamed; leave it out",
}
"""Keys that ``extra_body`` cannot have, because the ledger would not show the values sent."""
ENDPOINTS = ("/chat/completions", "/responses", "/v1/messages", "/messages")
"""Paths that the gateway appends to the base URL of an upstream."""
SANDBOXES = {"sandbox": "responses", "sandbox-chat": "chat"}
"""Names and dialects (APIs) of the upstreams that the first start creates for the sandbox."""


def check_base_url(url: str, *, allow_http: bool) -> None:
    """Raise ValidationError for a base URL that is malformed, or would expose the upstream's key.

    Plain http is permitted only for this machine, private networks and single-label host names,
    unless ``allow_http`` is set.
    """
    parts, host = split_url(url)
    if "@" in parts.netloc:  # this check is the first, because the other messages contain the URL
        raise ValidationError(
            "a base URL cannot contain a user or password; name the key in api_key"
        )
    if parts.scheme not in {"http", "https"} or not host or url != url.strip():
        raise ValidationError(f"base URL {url!r} must look like https://host/path")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValidationError(f"base URL {url!r} must end before any ? or #")
    if error := host_error(host):
        raise ValidationError(f"base URL {url!r}: {error}")
    if parts.scheme == "http" and not allow_http and not is_private(host):
        raise ValidationError(
            f"base URL {url!r} sends the key unencrypted to a public host; use https, "
            "or set allow_http = true"
        )


def split_url(url: str) -> tuple[SplitResult, str | None]:
    """Return the parts of a URL and its host; no parts and None if it is malformed."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return urlsplit(""), None
    return parts, host


def check_endpoint(url: str, dialect: str) -> None:
    """Raise ValidationError if the base URL ends with an endpoint, such as ``/chat/completions``.

    The gateway appends the endpoint, so requests would get a 404 response.
    """
    base = url.rstrip("/")
    for ending in ENDPOINTS:
        base = base.removesuffix(ending)
    if dialect == DialectName.ANTHROPIC:
        base = base.removesuffix("/v1")
    if base != url.rstrip("/"):
        raise ValidationError(
            f"base URL {url!r} names the endpoint, which is appended to it; write {base!r}"
        )


def check_extra_body(body: Mapping[str, Any]) -> None:
    for name, why in RESERVED.items():
        if name in body:
            raise ValidationError(f"{name!r} is {body[name]!r}; {why}")


class DialectName(models.TextChoices):
    RESPONSES = "responses", "OpenAI Responses"
    CHAT = "chat", "Chat Completions"
    ANTHROPIC = "anthropic", "Anthropic Messages"


class OnClientDisconnect(models.TextChoices):
    """What happens to the upstream's response after the client has disconnected."""

    ABORT = "abort", "Close the connection at once"
    DRAIN = "drain", "Read it to its end"


class ConnectionReuse(models.TextChoices):
    """Which requests may share a connection to an upstream."""

    SHARED = "shared", "Of all keys"
    KEY = "key", "Of the same key"
    NEVER = "never", "None: a new connection for each request"


class Upstream(models.Model):
    """A server to which the gateway sends requests.

    ``secret`` refers to an environment variable or a file, or contains the API key encrypted for
    this base URL.
    """

    name = models.SlugField(max_length=64, unique=True)
    dialect = models.CharField(max_length=16, choices=DialectName.choices)
    # Validated in clean(), because URLField does not accept "http://vllm".
    base_url = models.CharField(
        max_length=500,
        verbose_name="base URL",
        help_text="The gateway appends /responses or /chat/completions: "
        "https://api.openai.com/v1. For Anthropic the host without /v1.",
    )
    secret = SecretColumn(help_text='{"env": "OPENAI_API_KEY"} or {"file": "/run/secrets/x"}')
    # empty: ``secret`` is the key
    credentials = TypedJSON(
        AnySettings,
        help_text="Instead of a key, how to fetch one that expires, one setting per line: "
        "kind = aws, kind = google, or kind = azure and method = managed_identity.",
    )
    api_version = models.CharField(
        max_length=32,
        blank=True,
        default="",
        validators=[RegexValidator(API_VERSION, "it is not an api-version such as 2024-10-21")],
        verbose_name="API version",
        help_text="Of Azure OpenAI: 2024-10-21. Empty for a base URL with /openai/v1.",
    )
    profile = models.CharField(
        max_length=32,
        default="generic",
        help_text="The kind of server; it decides which fields and values a request may have.",
    )
    capabilities = TypedJSON(help_text="Only where this server differs from its profile.")
    # a model's name or glob -> its capabilities
    model_capabilities = TypedJSON(
        dict[str, dict[str, Any]],
        help_text="Only where single models differ, by name or glob: "
        '{"gpt-4o*": {"images": false}}. A longer name has precedence.',
    )
    timeouts = TypedJSON(Timeouts, help_text="Empty: the default of the gateway.")
    extra_body = TypedJSON(
        checks=(check_extra_body,),
        help_text="Fields to add to every translated request, one per line: top_k = 20, or "
        "chat_template_kwargs.enable_thinking = false. model and stream are not allowed.",
    )
    when_client_leaves = models.CharField(
        max_length=8,
        choices=OnClientDisconnect.choices,
        default=OnClientDisconnect.ABORT,
        help_text="Read the response to its end if the server bills all of it: "
        "then the row has the billed tokens, not the delivered ones.",
    )
    connection_reuse = models.CharField(
        max_length=8,
        choices=ConnectionReuse.choices,
        default=ConnectionReuse.SHARED,
        help_text="Connections per key limit a response that the upstream sends "
        "without a request to that key, but need more connections.",
    )
    connection = TypedJSON(
        Connection,
        checks=(check_connection,),
        help_text="Proxy, trusted CAs, client certificate and headers, with the names of "
        "bridge.toml, one per line: proxy = http://proxy:3128, proxy_auth.env = PROXY_LOGIN, "
        "ca_file = /etc/ssl/company.pem, headers.x-team = platform.",
    )
    allow_http = models.BooleanField(
        default=False,
        verbose_name="allow HTTP",
        help_text="Also for a public host: the secret is sent unencrypted.",
    )
    enabled = models.BooleanField(default=True)
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError for columns that do not fit together, or a lost secret."""
        self.check_together()
        with contextlib.suppress(msgspec.ValidationError):  # the column's validator has the reason
            self.check_credentials(parse_credentials(self.credentials))
        if self.has_encrypted_secret:
            try:
                decrypt_secret(self.secret[SEALED], self.base_url)
            except ConfigError as error:
                raise ValidationError({"base_url": str(error)}) from None

    def check_together(self) -> None:
        """Raise ValidationError for columns that do not fit together.

        A value of another type than that of its column is left to the column's validator.
        """
        try:
            check_base_url(self.base_url, allow_http=self.allow_http)
            check_endpoint(self.base_url, self.dialect)
        except ValidationError as error:
            raise ValidationError({"base_url": error.messages}) from None
        capabilities = [("profile", "", {}), ("capabilities", "", self.capabilities)]
        if isinstance(self.model_capabilities, dict):
            for pattern, found in self.model_capabilities.items():
                if not pattern.strip():
                    message = f"models {pattern!r}: a name or glob is expected"
                    raise ValidationError({"model_capabilities": message})
                capabilities.append(("model_capabilities", f"models {pattern!r}: ", found))
        for field, where, found in capabilities:
            try:
                profile_with(self.profile, found if isinstance(found, dict) else {})
            except TranslatorError as error:
                raise ValidationError({field: f"{where}{error}"}) from None

    def check_credentials(self, settings: AnySettings | None) -> None:
        """Raise ValidationError for credentials that the row cannot have."""
        if settings is not None and self.secret:
            message = "an upstream has an api_key or credentials, not both"
            raise ValidationError({"credentials": message})
        if isinstance(settings, CommandSettings) and not self.managed:
            # A program that the admin or the API could name would run as the gateway's user.
            message = "a command can only be set in bridge.toml"
            raise ValidationError({"credentials": message})

    def credential_settings(self) -> AnySettings | None:
        """Return the settings of a credential that expires; None if the upstream has none.

        Raises ConfigError if they are invalid or need an extra that is not installed.
        """
        try:
            settings = parse_credentials(self.credentials)
            self.check_credentials(settings)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from None
        except ValidationError as error:
            raise ConfigError(" ".join(error.messages)) from None
        if settings is not None:
            check_extra(settings)
        return settings

    def store_secret(self, secret: str) -> None:
        """Set an API key, encrypted for the base URL.

        Raise ValidationError if a header cannot contain it.
        """
        if not secret.isascii() or not secret.isprintable():
            raise ValidationError("it has characters that a header cannot contain")
        self.secret = {SEALED: encrypt_secret(secret, self.base_url)}

    def credential(self) -> Secret:
        """Return the API key for this upstream; empty if it has none, or credentials that expire.

        Raises ConfigError, which names the variable or file, if the key cannot be read.
        """
        try:
            self.check_secret()
        except ValidationError as error:
            raise ConfigError(" ".join(error.messages)) from None
        self.credential_settings()
        if self.has_encrypted_secret:
            return decrypt_secret(self.secret[SEALED], self.base_url)
        return resolve(self.secret)

    @property
    def secret_file(self) -> str:
        """The path of the file that contains the secret; empty if the secret is not in a file."""
        path = self.secret.get("file") if isinstance(self.secret, dict) else None
        return path if isinstance(path, str) else ""

    @property
    def has_encrypted_secret(self) -> bool:
        """Whether the secret is stored encrypted in the database."""
        return isinstance(self.secret, dict) and SEALED in self.secret

    def check_secret(self) -> None:
        """Raise ValidationError if ``secret`` is not a valid reference, which is not read."""
        SecretColumn().check_value(self.secret)


def secret_files(upstreams: Iterable[Upstream]) -> dict[str, str]:
    """Return the paths of the secret files of all enabled upstreams, by upstream and use."""
    files = {}
    for upstream in upstreams:
        if not upstream.enabled:
            continue
        if upstream.secret_file:
            files[upstream.name] = upstream.secret_file
        for use, path in secret_files_in(upstream.connection):
            files[f"{upstream.name} ({use})"] = path
    return files
