"""The Django admin: pages that show recorded requests; forms for keys, routes and budgets."""

from django.contrib import admin

from .audit import entry_admin  # noqa: F401 - registers its models, as the next ones do
from .requests import exchange_admin  # noqa: F401
from .setup import (  # noqa: F401
    budget_admin,
    drift_admin,
    key_admin,
    pause_admin,
    price_admin,
    route_admin,
    saved_report_admin,
    upstream_admin,
    user_admin,
    webhook_admin,
)

admin.site.index_title = "Dashboard"
# This template has the button for single sign-on.
admin.site.login_template = "proxy/signin/login.html"
