"""Django settings in documented groups, with no logic beyond what Django needs."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url

from .env import (
    FORMER_NAMES,
    TABLE,
    env_bool,
    env_choice,
    env_hour,
    env_int,
    env_keys,
    env_list,
    env_months,
    env_seconds,
    env_str,
    env_url,
    stored_secret,
)

BASE_DIR = Path(__file__).resolve().parent.parent

# Settings of the gateway; the Django app "proxy" reads them through proxy/conf.py.
BRIDGE_VARIABLES = TABLE
BRIDGE_FORMER_NAMES = FORMER_NAMES
DATA_DIR = Path(env_str("BRIDGE_DATA_DIR")).absolute()
REDIS_URL = env_url(
    "REDIS_URL", "redis", "rediss", "unix",
    "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip
REDIS_TIMEOUT_S = env_seconds("BRIDGE_REDIS_TIMEOUT_S")
WORKERS = env_int("BRIDGE_WORKERS")
PING_INTERVAL_S = env_seconds("BRIDGE_PING_INTERVAL_S")
FIRST_EVENT_WAIT_S = env_seconds("BRIDGE_FIRST_EVENT_WAIT_S")
DRAIN_S = env_seconds("BRIDGE_DRAIN_S")
KEEP_ALIVE_S = env_seconds("BRIDGE_KEEP_ALIVE_S")
HEAD_TIMEOUT_S = env_seconds("BRIDGE_HEAD_TIMEOUT_S")
BODY_TIMEOUT_S = env_seconds("BRIDGE_BODY_TIMEOUT_S")
WRITE_TIMEOUT_S = env_seconds("BRIDGE_WRITE_TIMEOUT_S")
MAX_BODY_BYTES = env_int("BRIDGE_MAX_BODY_BYTES")
MAX_BODIES_BYTES = env_int("BRIDGE_MAX_BODIES_BYTES")
MAX_STREAMS = env_int("BRIDGE_MAX_STREAMS")
MAX_CONNECTIONS = env_int("BRIDGE_MAX_CONNECTIONS")
MAX_CONNECTIONS_PER_ADDRESS = env_int("BRIDGE_MAX_CONNECTIONS_PER_ADDRESS")
PURGE_HOUR = env_hour("BRIDGE_PURGE_HOUR")
ARCHIVE_AFTER_MONTHS = env_months("BRIDGE_ARCHIVE_AFTER_MONTHS")
ARCHIVE_TO = env_str("BRIDGE_ARCHIVE_TO")
AUDIT_DAYS = env_int("BRIDGE_AUDIT_DAYS")
SEARCH = env_bool("BRIDGE_SEARCH")
READING_NEEDS_REASON = env_bool("BRIDGE_READING_NEEDS_REASON")
SHED_LAG_S = env_seconds("BRIDGE_SHED_LAG_S")
TRUSTED_PROXIES = env_list("BRIDGE_TRUSTED_PROXIES")
REVOKED_STREAMS = env_choice("BRIDGE_REVOKED_STREAMS", "finish", "end")
UNPRICED = env_choice("BRIDGE_UNPRICED", "refuse", "serve")
WEB_SEARCH_URL = env_url("BRIDGE_WEB_SEARCH_URL", "https", "http")
WEB_SEARCH_FORMAT = env_choice("BRIDGE_WEB_SEARCH_FORMAT", "searxng", "brave")
WEB_SEARCH_API_KEY = env_str("BRIDGE_WEB_SEARCH_API_KEY")
WEB_SEARCH_TIMEOUT_S = env_seconds("BRIDGE_WEB_SEARCH_TIMEOUT_S")
WEB_SEARCH_MAX_RESULTS = env_int("BRIDGE_WEB_SEARCH_MAX_RESULTS")
ADMIN_PASSWORD = env_str("BRIDGE_ADMIN_PASSWORD")
OPENAI_MODEL = env_str("BRIDGE_OPENAI_MODEL")
INSECURE_OK = env_bool("BRIDGE_INSECURE_OK")

# Secrets have no default. SECRET_KEY is empty until `serve` creates <data>/secret_key; Django
# raises an error if code uses an empty SECRET_KEY.
SECRET_KEY_PATH = DATA_DIR / "secret_key"
SECRET_KEY = env_str("BRIDGE_SECRET_KEY") or stored_secret(SECRET_KEY_PATH)
SECRET_KEY_FALLBACKS = env_list("BRIDGE_SECRET_KEY_FALLBACKS")
# The keys that encrypt the texts of conversations; they have no stored default.
BODY_KEYS = env_keys("BRIDGE_BODY_KEYS", min_length=43)  # 256 bits in base64

# Django would print at each command that SQLite lacks two constraints, for rows with a null.
SILENCED_SYSTEM_CHECKS = ["models.W047"]

# Access to the admin and the reports.
DEBUG = env_bool("BRIDGE_DEBUG")
ALLOWED_HOSTS = env_list("BRIDGE_ALLOWED_HOSTS")
CSRF_TRUSTED_ORIGINS = env_list("BRIDGE_CSRF_TRUSTED_ORIGINS")
HTTPS = env_bool("BRIDGE_HTTPS")
SECURE_SSL_REDIRECT = HTTPS
# Health checks and Prometheus request these paths over plain HTTP.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = 12 * 3600
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

INSTALLED_APPS = [
    # Daphne is for runserver. The serve command does not use Daphne, whose import of Twisted would
    # take 24 MB and 0.4 s of the startup.
    *([] if sys.argv[1:2] == ["serve"] else ["daphne"]),
    # This precedes the admin, because Unfold replaces admin templates.
    "bridge_project.apps.UnfoldConfig",
    "bridge_project.apps.LazyAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "proxy",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "proxy.audit_log.actor.actor_middleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "proxy.admin.core.csp_middleware.AdminCspMiddleware",
    "proxy.admin.core.time_zone.TimeZoneMiddleware",
    "proxy.admin.audit.reading_reason.ReadingReasonMiddleware",
    # This middleware must be the last: it replaces the response to a sign-in that is locked out.
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "bridge_project.urls"
ASGI_APPLICATION = "bridge_project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # These templates replace those of the theme.
        "DIRS": [BASE_DIR / "proxy" / "theme" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "proxy.admin.core.time_zone.context",
            ]
        },
    }
]
# The target after a sign-in without a valid `next` page of this site.
LOGIN_REDIRECT_URL = "/admin/"
# Protection against password guessing: five failed sign-ins of one user from one address lock this
# pair for 15 minutes. The failures are counted in the database, so all workers share the counts and
# a restart preserves them. The address is that of the TCP peer; uvicorn takes it from
# X-Forwarded-For only if the peer is in BRIDGE_TRUSTED_PROXIES.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "proxy.permissions.team_grants.RolesNeedTeams",
    "django.contrib.auth.backends.ModelBackend",
]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_CALLABLE = "proxy.signin.lockout.lockout_response"
AXES_DISABLE_ACCESS_LOG = True  # Django's admin log already records the sign-ins
AXES_ENABLE_ADMIN = False  # `manage.py axes_reset` unlocks users
AXES_VERBOSE = False
# OIDC sign-ins have no password to guess
AXES_WHITELIST_CALLABLE = "proxy.signin.oidc_settings.is_sign_in"
# Sign-in by OpenID Connect in addition to passwords; the code is in proxy/signin.
OIDC_ISSUER = env_str("BRIDGE_OIDC_ISSUER")
OIDC_CLIENT_ID = env_str("BRIDGE_OIDC_CLIENT_ID")
OIDC_CLIENT_SECRET = env_str("BRIDGE_OIDC_CLIENT_SECRET")
OIDC_GROUPS = env_list("BRIDGE_OIDC_GROUPS")
OIDC_GROUPS_CLAIM = env_str("BRIDGE_OIDC_GROUPS_CLAIM")
OIDC_SCOPES = env_str("BRIDGE_OIDC_SCOPES")
OIDC_ALGORITHM = env_str("BRIDGE_OIDC_ALGORITHM")
OIDC_LABEL = env_str("BRIDGE_OIDC_LABEL")
# Without an issuer, Django ends the sessions of OIDC users, because their backend is missing.
if OIDC_ISSUER:
    AUTHENTICATION_BACKENDS.append("proxy.signin.backend.Backend")
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# The ledger database. On SQLite, readers do not wait for the writer, and concurrent writers wait
# for each other instead of failing.
DATABASE: Any = dj_database_url.parse(
    env_url("DATABASE_URL", "postgres", "postgresql", "sqlite")
    or f"sqlite:///{DATA_DIR / 'ledger.sqlite3'}"
)
if DATABASE["ENGINE"].endswith("sqlite3"):
    DATABASE["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        # 16 MB of page cache, so that a report reads a month of rollup rows from memory.
        "init_command": (
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-16384;"
        ),
    }
else:
    DATABASE["OPTIONS"] = {"connect_timeout": 5, **DATABASE.get("OPTIONS", {})}
DATABASES = {"default": DATABASE}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The reports API: JSON only, and for staff only unless a view sets other permissions.
REST_FRAMEWORK = {
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["proxy.reports.core.json_bodies.BoundedJSON"],
    "DEFAULT_SCHEMA_CLASS": "proxy.reports.openapi.OperationSchema",
    "EXCEPTION_HANDLER": "proxy.reports.core.exception_handler.exception_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Messages Bridge API",
    "VERSION": "1",
    "DESCRIPTION": (
        "Usage, cost and requests of this gateway, and its configuration. Send a gateway key as "
        "`x-api-key` or as `Authorization: Bearer`; its scopes decide what it may read and write. "
        "A signed-in user may do the same as in the admin. Errors have the format of Anthropic's "
        "API."
    ),
    "DEFAULT_GENERATOR_CLASS": "proxy.reports.openapi.CachedGenerator",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",  # served from the installed package, not from another host
    "PREPROCESSING_HOOKS": ["proxy.reports.openapi.documented_paths"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "proxy.reports.openapi.add_errors_and_formats",
    ],
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {"FigureSourceEnum": ["reported", "derived", "missing"]},
    "COMPONENT_SPLIT_REQUEST": True,  # generated clients have one class for bodies, one for rows
}

# Logs go to stderr. The ledger is the access log; with the JSON format, requests are also logged.
OTEL = env_bool("BRIDGE_OTEL")
LOG_FORMAT = env_choice("BRIDGE_LOG_FORMAT", "text", "json")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {
            "()": "proxy.log_format.TextLines",
            "format": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        },
        "json": {"()": "proxy.log_format.JsonLines"},
    },
    "filters": {
        "refusals": {"()": "proxy.log_format.Refusals"},
        "repeated": {"()": "proxy.log_format.RepeatedLines"},
    },
    "handlers": {
        "stderr": {
            "class": "proxy.log_format.NonBlockingStderrHandler",
            "formatter": LOG_FORMAT,
            "filters": ["refusals", "repeated"],
        }
    },
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "proxy": {"level": "INFO"},
        # A wrong Host header gets a 400. Scanners send thousands, and each would log a traceback.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
    },
}

# Mail settings: the gateway mails only budget notices.
EMAIL_HOST = env_str("BRIDGE_SMTP_HOST")
EMAIL_PORT = env_int("BRIDGE_SMTP_PORT")
EMAIL_USE_TLS = env_bool("BRIDGE_SMTP_TLS")
EMAIL_HOST_USER = env_str("BRIDGE_SMTP_USER")
EMAIL_HOST_PASSWORD = env_str("BRIDGE_SMTP_PASSWORD")
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env_str("BRIDGE_EMAIL_FROM")

# The admin's banner may show a state that is up to this many seconds old.
BANNER_FRESH_S = 5.0
UNFOLD = {
    "SITE_TITLE": "Messages Bridge",
    "SITE_HEADER": "Messages Bridge",
    "SITE_URL": None,
    # The colors are in proxy/static/proxy/theme.css, because the CSP forbids inline styles.
    "COLORS": {},
    "ENVIRONMENT": "proxy.admin.site_notices.environment",
    "GLOBAL_CALLBACK": "proxy.admin.site_notices.context",
    "DASHBOARD_CALLBACK": "proxy.admin.dashboard.views.context",
    "SIDEBAR": {"navigation": "proxy.admin.navigation.sidebar_groups"},
}

# Times are in UTC; reports accept any IANA zone.
USE_TZ = True
FORMAT_MODULE_PATH = "bridge_project.formats"  # every language uses the same date format
TIME_ZONE = "UTC"

STATIC_URL = "static/"
# Serve static files from the installed packages: no collectstatic, no STATIC_ROOT.
WHITENOISE_USE_FINDERS = True
