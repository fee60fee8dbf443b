"""Typed readers of the environment, and the one table of every variable they may read.

A variable may come from a file: ``BRIDGE_SECRET_KEY_FILE=/run/secrets/key``. The table is what the
docs print and what a misspelt name is compared with; a reader refuses names that are not in it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its default as text, whether it is secret, what it is for."""

    name: str
    default: str
    meaning: str
    secret: bool = False


TABLE: Final = (
    Variable("BRIDGE_DATA_DIR", "data", "Where ledger, spool and secret key live (mode 0700)."),
    Variable(
        "BRIDGE_SECRET_KEY",
        "",
        "Root of every derived key, 50 characters or more; `serve` makes `<data>/secret_key` "
        "when it is unset.",
        secret=True,
    ),
    Variable(
        "BRIDGE_SECRET_KEY_FALLBACKS",
        "",
        "Earlier secret keys, comma-separated: sessions and reasoning signatures stay valid.",
        secret=True,
    ),
    Variable(
        "BRIDGE_ADMIN_PASSWORD",
        "",
        "Password of the `admin` user that the first start creates, 12 characters or more; "
        "generated when unset.",
        secret=True,
    ),
    Variable(
        "BRIDGE_ALLOWED_HOSTS",
        "localhost,127.0.0.1,[::1]",
        "Host names that the admin and the reports answer to, comma-separated, without port.",
    ),
    Variable(
        "BRIDGE_CSRF_TRUSTED_ORIGINS",
        "",
        "Origins such as `https://bridge.example.com` that may post to the admin.",
    ),
    Variable(
        "BRIDGE_HTTPS",
        "0",
        "1 behind TLS: secure cookies, HSTS, redirect to https.",
    ),
    Variable("BRIDGE_DEBUG", "0", "1 shows tracebacks in the admin; never outside your desk."),
    Variable("BRIDGE_INSECURE_OK", "0", "1 lets `serve` start with settings that it calls unsafe."),
    Variable(
        "DATABASE_URL",
        "",
        "Such as `postgres://user:password@host/name`; default `<data>/ledger.sqlite3`.",
        secret=True,
    ),
    Variable(
        "REDIS_URL",
        "",
        "Such as `redis://host:6379/0`: budgets and limits shared by several machines; else each "
        "machine counts for itself.",
        secret=True,
    ),
    Variable(
        "BRIDGE_REDIS_TIMEOUT_S", "0.1", "How long Redis may take before a machine does without."
    ),
    Variable(
        "BRIDGE_WORKERS",
        "1",
        "Processes that serve; beside each, a small one writes its spool. `serve --workers` wins.",
    ),
    Variable(
        "BRIDGE_OPENAI_MODEL",
        "gpt-5.2",
        "What `claude-*` becomes when a first start finds `OPENAI_API_KEY`.",
    ),
    Variable(
        "BRIDGE_LOG_FORMAT",
        "text",
        "`json`: one object a line, and a line for each request; `text`: lines for people.",
    ),
    Variable(
        "BRIDGE_OTEL",
        "0",
        "1 sends traces by OTLP (extra `otel`); the standard `OTEL_*` variables say where to.",
    ),
    Variable("BRIDGE_SMTP_HOST", "", "Mail server for notices of budgets; empty: none is sent."),
    Variable("BRIDGE_SMTP_PORT", "587", "Its port."),
    Variable("BRIDGE_SMTP_TLS", "1", "1 uses STARTTLS, 0 sends in clear."),
    Variable("BRIDGE_SMTP_USER", "", "Name to sign in with; empty: no sign-in."),
    Variable("BRIDGE_SMTP_PASSWORD", "", "Password to sign in with.", secret=True),
    Variable("BRIDGE_EMAIL_FROM", "bridge@localhost", "Sender of those mails."),
    Variable(
        "BRIDGE_OIDC_ISSUER",
        "",
        "Sign-in provider, such as `https://login.example.com/realms/main`; unset: passwords only.",
    ),
    Variable("BRIDGE_OIDC_CLIENT_ID", "", "Our name at the sign-in provider."),
    Variable("BRIDGE_OIDC_CLIENT_SECRET", "", "Our secret there.", secret=True),
    Variable(
        "BRIDGE_OIDC_GROUPS",
        "",
        "What their groups are here, such as `leads=owner,staff=member,bridge-*=team:*`.",
    ),
    Variable("BRIDGE_OIDC_GROUPS_CLAIM", "groups", "The claim that lists a person's groups."),
    Variable("BRIDGE_OIDC_SCOPES", "openid email profile", "What we ask the provider for."),
    Variable("BRIDGE_OIDC_ALGORITHM", "RS256", "How the provider signs ID tokens."),
    Variable("BRIDGE_OIDC_LABEL", "single sign-on", "What the button says after `Sign in with`."),
    Variable("BRIDGE_PING_INTERVAL_S", "15", "A stream silent for so long gets a `ping`."),
    Variable(
        "BRIDGE_HOLD_S", "10", "How long the status 200 waits for upstream's first event, at most."
    ),
    Variable("BRIDGE_DRAIN_S", "60", "How long running streams may go on after SIGTERM."),
    Variable(
        "BRIDGE_KEEP_ALIVE_S",
        "75",
        "How long a connection may wait for its next request; longer than a load balancer's.",
    ),
    Variable("BRIDGE_HEAD_TIMEOUT_S", "10", "How long a client may take to send its headers."),
    Variable(
        "BRIDGE_BODY_TIMEOUT_S",
        "30",
        "How long a request body may take, and a second more for each MiB of it.",
    ),
    Variable("BRIDGE_WRITE_TIMEOUT_S", "60", "How long a client may refuse to read its answer."),
    Variable("BRIDGE_MAX_BODY_BYTES", "33554432", "Largest request body; more is a 413."),
    Variable(
        "BRIDGE_MAX_BODIES_BYTES",
        "1073741824",
        "Memory for the bodies of all requests in one worker, decoded; more is a 529.",
    ),
    Variable("BRIDGE_MAX_STREAMS", "2000", "Requests at once in one worker; more is a 529."),
    Variable(
        "BRIDGE_MAX_CONNECTIONS",
        "16384",
        "Connections of clients in one worker; more get 503. Fewer where the limit of open files "
        "is low: half of what it leaves beside 192.",
    ),
    Variable(
        "BRIDGE_MAX_CONNECTIONS_PER_ADDRESS",
        "4096",
        "Of these, how many one client address (an IPv6 /64) may have, and never more than three "
        "quarters; `BRIDGE_TRUSTED_PROXIES` are not counted.",
    ),
    Variable(
        "BRIDGE_PURGE_HOUR",
        "3",
        "From which hour (UTC) on transcripts that are past their team's retention go, once a day; "
        "`never` leaves it to `pruneledger`.",
    ),
    Variable("BRIDGE_SHED_LAG_S", "0.25", "A worker that stays so late answers new ones 529."),
    Variable(
        "BRIDGE_REVOKED_STREAMS",
        "finish",
        "What becomes of running requests whose key is revoked: `finish`, or `end` in an error "
        "within 2 seconds.",
    ),
    Variable(
        "BRIDGE_UNPRICED",
        "refuse",
        "What becomes of a request under a hard budget whose model has no price: `refuse` it with "
        "402, as its cost could not be counted, or `serve` it uncounted.",
    ),
    Variable(
        "BRIDGE_TRUSTED_PROXIES",
        "",
        "Networks whose X-Forwarded-For and -Proto are believed, comma-separated.",
    ),
)
VARIABLES: Final = {variable.name: variable for variable in TABLE}


def env_str(name: str) -> str:
    """The variable, or the text of the file that ``<name>_FILE`` names, or the table's default.

    A secret that is set but blank is a mistake (an unfilled template), so it is refused.
    """
    variable = VARIABLES[name]
    path = os.environ.get(f"{name}_FILE")
    value = os.environ.get(name) if path is None else _file_text(name, path)
    if value is None:
        return variable.default
    if variable.secret and not value.strip():
        raise ImproperlyConfigured(f"{name} is set but empty; unset it or give it a value")
    return value


def stored_secret(path: Path) -> str:
    """The secret that `serve` has stored there, or "" when it has not."""
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
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ImproperlyConfigured(f"{name}_FILE names {path!r}: {reason}") from None


def env_int(name: str) -> int:
    """A whole number, 1 or more."""
    value = env_str(name)
    if not value.strip().isdecimal() or int(value) < 1:
        raise ImproperlyConfigured(f"{name} is {value!r}; a whole number above 0 is expected")
    return int(value)


def env_seconds(name: str) -> float:
    """Seconds, above 0."""
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
    """One of these words. ``expected``: how a complaint tells them, where they are many."""
    value = env_str(name).strip().lower()
    if value not in choices:
        told = expected or " or ".join(choices)
        raise ImproperlyConfigured(f"{name} is {value!r}; expected {told}")
    return value


def env_hour(name: str) -> int | None:
    """An hour of the day, 0 to 23; None: ``never``."""
    value = env_choice(name, *map(str, range(24)), "never", expected="0 to 23, or never")
    return None if value == "never" else int(value)


def env_url(name: str, *schemes: str) -> str:
    """A URL of one of these schemes, or "". No complaint repeats it: it may hold a password."""
    value = env_str(name)
    try:
        parts = urlsplit(value)
        known = not value or (parts.scheme in schemes and parts.port != 0)
    except ValueError:  # a port that is no number, a bracket that is not closed
        known = False
    if not known:
        expected = " or ".join(f"{scheme}://" for scheme in schemes)
        raise ImproperlyConfigured(f"{name} is not a URL that can be used; expected {expected}...")
    return value


def env_list(name: str) -> list[str]:
    """Comma-separated values; blanks around them and empty ones are dropped."""
    return [part.strip() for part in env_str(name).split(",") if part.strip()]
