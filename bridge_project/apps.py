"""How foreign apps are installed here."""

from typing import Any

from django.apps import AppConfig
from django.contrib.admin import autodiscover
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


class Theme(AppConfig):
    """Unfold, whose own module of this name imports its pages."""

    name = "unfold"


class AdminOnDemand(SimpleAdminConfig):
    """The admin, whose pages are found when the first is opened, or when they are to be checked.

    With the theme and the forms they are a third of the memory and of the start of a gateway.
    """

    default_site = "unfold.sites.UnfoldAdminSite"

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(_check_pages, checks.Tags.admin)


def _check_pages(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    autodiscover()
    return check_admin_app(app_configs, **kwargs)
