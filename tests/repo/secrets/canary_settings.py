"""The real settings, with every logger at DEBUG: no secret may appear at that level."""

from bridge_project.settings import *  # noqa: F403
from bridge_project.settings import LOGGING

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the standard one is slow
LOGGING = {
    **LOGGING,
    "root": {"handlers": ["stderr"], "level": "DEBUG"},
    "loggers": {
        name: {"level": "DEBUG"}
        for name in (
            "proxy", "django", "django.request", "django.security", "django.template", "httpx",
            "httpcore", "aiohttp", "urllib3", "asyncio", "psycopg", "redis", "axes",
            "mozilla_django_oidc", "uvicorn", "uvicorn.error", "uvicorn.access", "channels",
        )
    },
}  # fmt: skip
