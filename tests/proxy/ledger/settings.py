"""The real settings without the admin: a process that only writes the ledger starts faster."""

from bridge_project.settings import *  # noqa: F403

INSTALLED_APPS = [  # type: ignore[misc]
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "proxy",
]
MIDDLEWARE: list[str] = []  # it serves no requests
ROOT_URLCONF = "tests.proxy.ledger.settings"
urlpatterns: list[object] = []
