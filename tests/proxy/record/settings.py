"""The real settings, without the admin: a process that only keeps the record starts faster."""

from bridge_project.settings import *  # noqa: F403

INSTALLED_APPS = [  # type: ignore[misc]
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "proxy",
]
MIDDLEWARE: list[str] = []  # it answers nobody
ROOT_URLCONF = "tests.proxy.record.settings"
urlpatterns: list[object] = []
