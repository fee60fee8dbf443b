"""App configs of third-party apps."""

from typing import Any

from django.apps import AppConfig
from django.contrib.admin import autodiscover
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


class UnfoldConfig(AppConfig):
    """Registers Unfold, the theme of the admin, without Unfold's own app config.

    That app config would import all admin pages at startup.
    """

    name = "unfold"


class LazyAdminConfig(SimpleAdminConfig):
    """Load the admin pages on the first admin request, or when Django's checks need them.

    With their theme and forms, the admin pages take a third of a gateway's memory and startup time.
    """

    default_site = "unfold.sites.UnfoldAdminSite"

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(_check_pages, checks.Tags.admin)


def _check_pages(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    autodiscover()
    return check_admin_app(app_configs, **kwargs)
