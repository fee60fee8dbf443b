"""Typed readers of environment variables, and the table of all variables.

A value may also come from a file: ``BRIDGE_SECRET_KEY_FILE=/run/secrets/key`` sets
``BRIDGE_SECRET_KEY``. The documentation shows the table, and misspelled names are found by
comparison with the table. A reader raises KeyError for a name that the table does not contain.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from proxy.file_modes import refuse_writable_by_all


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: name, default as text, meaning, and whether it is secret."""

    name: str
    default: str
    meaning: str
    secret: bool = False


TABLE: Final = (
    Variable("BRIDGE_DATA_DIR", "data", "Directory of ledger, journal and secret key (mode 0700)."),
    Variable(
        "BRIDGE_SECRET_KEY",
        "",
        "Root of all derived keys, at least 50 characters; if unset, `serve` creates "
        "`<data>/secret_key`.",
        secret=True,
    ),
    Variable(
        "BRIDGE_SECRET_KEY_FALLBACKS",
        "",
        "Earlier secret keys, comma-separated; their sessions, reasoning signatures and gateway "
        "keys stay valid.",
        secret=True,
    ),
    Variable(
        "BRIDGE_BODY_KEYS",
        "",
        "Keys that [encrypt the texts of conversations](../guides/data-protection/encryption.md), "
        "separated by line ends or commas: the first encrypts, all decrypt; at least 43 characters "
        "each. They switch the search off.",
        secret=True,
    ),
    Variable(
        "BRIDGE_ADMIN_PASSWORD",
        "",
        "Password of the `admin` user that the first start creates, at least 12 characters; "
        "generated if unset.",
        secret=True,
    ),
    Variable(
        "BRIDGE_ALLOWED_HOSTS",
        "localhost,127.0.0.1,[::1]",
        "Accepted host names of the admin and the reports, comma-separated, without port.",
    ),
    Variable(
        "BRIDGE_CSRF_TRUSTED_ORIGINS",
        "",
        "Origins that may post to the admin, such as `https://bridge.example.com`.",
    ),
    Variable(
        "BRIDGE_HTTPS",
        "0",
        "1 behind TLS: secure cookies, HSTS, redirect to https.",
    ),
    Variable("BRIDGE_DEBUG", "0", "1 shows tracebacks in the admin; only for development."),
    Variable("BRIDGE_INSECURE_OK", "0", "1 allows `serve` to start with unsafe settings."),
    Variable(
        "DATABASE_URL",
        "",
        "Database, such as `postgres://user:password@host/name`; default: `<data>/ledger.sqlite3`.",
        secret=True,
    ),
    Variable(
        "REDIS_URL",
        "",
        "Redis for budgets and limits shared by several machines, such as `redis://host:6379/0` "
        "([other forms](../guides/budgets.md#redis): TLS, Sentinel, Cluster); if unset, each "
        "machine counts for itself.",
        secret=True,
    ),
    Variable(
        "BRIDGE_REDIS_TIMEOUT_S", "0.1", "Timeout of Redis; after it a machine counts for itself."
    ),
    Variable(
        "BRIDGE_WORKERS",
        "1",
        "Worker processes, each with its own journal. `serve --workers` takes precedence.",
    ),
    Variable(
        "BRIDGE_OPENAI_MODEL",
        "gpt-5.2",
        "Target model of `claude-*` when a first start finds `OPENAI_API_KEY`.",
    ),
    Variable(
        "BRIDGE_LOG_FORMAT",
        "text",
        "`json`: one object per line, and one line per request; `text`: readable lines.",
    ),
    Variable(
        "BRIDGE_OTEL",
        "0",
        "1 sends traces with OTLP (extra `otel`), configured by the standard `OTEL_*` variables.",
    ),
    Variable("BRIDGE_SMTP_HOST", "", "Mail server for budget notices; if unset, no mail is sent."),
    Variable("BRIDGE_SMTP_PORT", "587", "Port of the mail server."),
    Variable("BRIDGE_SMTP_TLS", "1", "1 uses STARTTLS, 0 sends without encryption."),
    Variable("BRIDGE_SMTP_USER", "", "User name for the mail server; if unset, no login."),
    Variable("BRIDGE_SMTP_PASSWORD", "", "Password for the mail server.", secret=True),
    Variable("BRIDGE_EMAIL_FROM", "bridge@localhost", "Sender address of budget notices."),
    Variable(
        "BRIDGE_OIDC_ISSUER",
        "",
        "Issuer of the sign-in provider, such as `https://login.example.com/realms/main`; if "
        "unset, only passwords.",
    ),
    Variable("BRIDGE_OIDC_CLIENT_ID", "", "Client id at the sign-in provider."),
    Variable("BRIDGE_OIDC_CLIENT_SECRET", "", "Client secret at the provider.", secret=True),
    Variable(
        "BRIDGE_OIDC_GROUPS",
        "",
        "Mapping of the provider's groups, such as `leads=owner,staff=member,bridge-*=team:*`.",
    ),
    Variable("BRIDGE_OIDC_GROUPS_CLAIM", "groups", "Claim that contains a person's groups."),
    Variable("BRIDGE_OIDC_SCOPES", "openid email profile", "Scopes requested from the provider."),
    Variable("BRIDGE_OIDC_ALGORITHM", "RS256", "Signature algorithm of the ID tokens."),
    Variable("BRIDGE_OIDC_LABEL", "single sign-on", "Button text after `Sign in with`."),
    Variable(
        "BRIDGE_PING_INTERVAL_S", "15", "A stream without events for this time gets a `ping`."
    ),
    Variable(
        "BRIDGE_FIRST_EVENT_WAIT_S",
        "10",
        "Maximum time that the status 200 is delayed to wait for the upstream's first event.",
    ),
    Variable("BRIDGE_DRAIN_S", "60", "Time that running streams may continue after SIGTERM."),
    Variable(
        "BRIDGE_KEEP_ALIVE_S",
        "75",
        "Idle timeout of client connections; set it longer than the load balancer's.",
    ),
    Variable("BRIDGE_HEAD_TIMEOUT_S", "10", "Timeout for the request headers of a client."),
    Variable(
        "BRIDGE_BODY_TIMEOUT_S",
        "30",
        "Timeout for a request body, plus one second per MiB.",
    ),
    Variable("BRIDGE_WRITE_TIMEOUT_S", "60", "Time that a client may stop reading its response."),
    Variable("BRIDGE_MAX_BODY_BYTES", "33554432", "Largest request body; larger ones get 413."),
    Variable(
        "BRIDGE_MAX_BODIES_BYTES",
        "1073741824",
        "Memory for the decoded bodies of all requests in one worker; beyond it: 529.",
    ),
    Variable("BRIDGE_MAX_STREAMS", "2000", "Concurrent requests in one worker; more get 529."),
    Variable(
        "BRIDGE_MAX_CONNECTIONS",
        "16384",
        "Client connections in one worker; more get 503. The effective maximum is "
        "(limit of open files - 192) / 2 if that is lower.",
    ),
    Variable(
        "BRIDGE_MAX_CONNECTIONS_PER_ADDRESS",
        "4096",
        "Connections of one client address (an IPv6 /64), at most three quarters of all; "
        "`BRIDGE_TRUSTED_PROXIES` are not counted.",
    ),
    Variable(
        "BRIDGE_PURGE_HOUR",
        "3",
        "Hour (UTC) of the daily purge of expired transcripts; `never`: only `pruneledger` "
        "deletes them.",
    ),
    Variable(
        "BRIDGE_ARCHIVE_AFTER_MONTHS",
        "never",
        "Full months that stay in the database, 1 to 120; each day after `BRIDGE_PURGE_HOUR` "
        "(not if that is `never`), older months are "
        "[archived](../guides/capacity.md#archived-months) and deleted there.",
    ),
    Variable(
        "BRIDGE_ARCHIVE_TO",
        "",
        "Folder that every host can read, or `s3://bucket/prefix`, for archived months; default: "
        "`archive` in the data directory.",
    ),
    Variable(
        "BRIDGE_AUDIT_DAYS", "730", "Days after which the purge deletes entries of the audit log."
    ),
    Variable(
        "BRIDGE_SEARCH",
        "1",
        "Whether new transcripts are indexed and can be searched; `0` writes no index.",
    ),
    Variable(
        "BRIDGE_READING_NEEDS_REASON",
        "0",
        "1 requires a reason from everyone who reads another person's transcript "
        "([how](../guides/security.md#reasons-for-reading)).",
    ),
    Variable(
        "BRIDGE_SHED_LAG_S", "0.25", "A worker whose event loop is late by this rejects with 529."
    ),
    Variable(
        "BRIDGE_REVOKED_STREAMS",
        "finish",
        "Running requests of a revoked key: `finish`, or `end` with an error within 2 seconds.",
    ),
    Variable(
        "BRIDGE_UNPRICED",
        "refuse",
        "Requests under a hard budget for a model without a price: `refuse` them with 402, or "
        "`serve` them without counting the cost.",
    ),
    Variable(
        "BRIDGE_WEB_SEARCH_URL",
        "",
        "Search endpoint for `web_search` on translated routes ([how](../guides/web-search.md)); "
        "if unset, the gateway makes no searches.",
    ),
    Variable(
        "BRIDGE_WEB_SEARCH_FORMAT",
        "searxng",
        "API of the search endpoint: `searxng`, or `brave` (Brave Search API).",
    ),
    Variable("BRIDGE_WEB_SEARCH_API_KEY", "", "Key for the search endpoint.", secret=True),
    Variable("BRIDGE_WEB_SEARCH_TIMEOUT_S", "10", "Timeout of one search."),
    Variable("BRIDGE_WEB_SEARCH_MAX_RESULTS", "5", "Results of one search that the model gets."),
    Variable(
        "BRIDGE_TRUSTED_PROXIES",
        "",
        "Networks whose X-Forwarded-For and X-Forwarded-Proto are trusted, comma-separated.",
    ),
)
VARIABLES: Final = {variable.name: variable for variable in TABLE}


FORMER_NAMES: Final = {"BRIDGE_FIRST_EVENT_WAIT_S": "BRIDGE_HOLD_S"}
"""Variable -> its deprecated name, which still counts unless the variable itself is set."""


def env_str(name: str) -> str:
    """Return the variable's text, else the text of the file in ``<name>_FILE``, else the default.

    A secret variable that is set but blank raises ImproperlyConfigured: its value was probably
    never filled in.
    """
    variable = VARIABLES[name]
    if f"{name}_FILE" not in os.environ and name not in os.environ:
        name = FORMER_NAMES.get(name, name)
    path = os.environ.get(f"{name}_FILE")
    value = os.environ.get(name) if path is None else _file_text(name, path)
    if value is None:
        return variable.default
    if variable.secret and not value.strip():
        raise ImproperlyConfigured(f"{name} is set but empty; unset it or give it a value")
    return value


def stored_secret(path: Path) -> str:
    """Return the secret that the ``serve`` command stored in this file; "" if there is no file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        raise ImproperlyConfigured(f"data directory {path.parent} is no directory") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a secret key"
        raise ImproperlyConfigured(f"{path} cannot be read: {reason}") from None


def _file_text(name: str, path: str) -> str:
    if name in os.environ:
        raise ImproperlyConfigured(f"both {name} and {name}_FILE are set; keep one")
    try:
        refuse_writable_by_all(path, Path(path).stat().st_mode)
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ImproperlyConfigured(f"{name}_FILE names {path!r}: {reason}") from None


def env_int(name: str) -> int:
    """Return the variable as an integer above 0."""
    value = env_str(name)
    if not value.strip().isdecimal() or int(value) < 1:
        raise ImproperlyConfigured(f"{name} is {value!r}; a whole number above 0 is expected")
    return int(value)


def env_seconds(name: str) -> float:
    """Return the variable as a number of seconds above 0."""
    value = env_str(name)
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ImproperlyConfigured(f"{name} is {value!r}; seconds above 0 are expected")
    return seconds


def env_bool(name: str) -> bool:
    value = env_str(name).strip().lower()
    if value not in {"0", "1", "true", "false", "yes", "no"}:
        raise ImproperlyConfigured(f"{name} is {value!r}; expected 1 or 0")
    return value in {"1", "true", "yes"}


def env_choice(name: str, *choices: str, expected: str = "") -> str:
    """Return the variable, which must be one of ``choices``.

    ``expected`` describes the choices in the error message.
    """
    value = env_str(name).strip().lower()
    if value not in choices:
        described = expected or " or ".join(choices)
        raise ImproperlyConfigured(f"{name} is {value!r}; expected {described}")
    return value


def env_hour(name: str) -> int | None:
    """Return the variable as an hour of the day, 0 to 23; None for ``never``."""
    value = env_choice(name, *map(str, range(24)), "never", expected="0 to 23, or never")
    return None if value == "never" else int(value)


def env_months(name: str) -> int | None:
    """Return the variable as a number of months, 1 to 120; None for ``never``."""
    value = env_choice(name, *map(str, range(1, 121)), "never", expected="1 to 120, or never")
    return None if value == "never" else int(value)


def env_url(name: str, *schemes: str) -> str:
    """Return a URL with one of ``schemes``; "" if the variable is empty.

    Error messages do not quote the URL, because it may contain a password.
    """
    value = env_str(name)
    try:
        parts = urlsplit(value)
        # The URL of Redis Sentinels lists several hosts.
        hosts = parts.netloc.split(",") if parts.scheme.endswith("+sentinel") else [parts.netloc]
        ports = [urlsplit(f"//{host}").port for host in hosts]
        known = not value or (parts.scheme in schemes and 0 not in ports)
    except ValueError:  # the port is not a number, or a bracket is not closed
        known = False
    if not known:
        expected = " or ".join(f"{scheme}://" for scheme in schemes)
        raise ImproperlyConfigured(f"{name} is not a URL that can be used; expected {expected}...")
    return value


def env_keys(name: str, min_length: int) -> list[str]:
    """Return the keys of the variable, separated by commas or white space.

    Raises ImproperlyConfigured if one is shorter than ``min_length`` or occurs twice. The message
    does not quote the keys.
    """
    keys = env_str(name).replace(",", " ").split()
    for number, key in enumerate(keys, 1):
        if len(key) < min_length:
            raise ImproperlyConfigured(
                f"{name}: key {number} has {len(key)} characters; at least {min_length} are "
                "needed, as openssl rand -base64 32 prints them"
            )
        if key in keys[: number - 1]:
            raise ImproperlyConfigured(f"{name}: key {number} occurs twice")
    return keys


def env_list(name: str) -> list[str]:
    """Return the comma-separated values of the variable, stripped, without empty ones."""
    return [part.strip() for part in env_str(name).split(",") if part.strip()]
