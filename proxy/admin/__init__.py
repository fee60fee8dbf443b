"""The Django admin: pages that show recorded requests; forms for keys, routes and budgets."""

from django.contrib import admin

from .audit import entry_admin
from .requests import exchange_admin
from .setup import (
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

__all__ = [
    "budget_admin",
    "drift_admin",
    "entry_admin",
    "exchange_admin",
    "key_admin",
    "pause_admin",
    "price_admin",
    "route_admin",
    "saved_report_admin",
    "upstream_admin",
    "user_admin",
    "webhook_admin",
]

admin.site.index_title = "Dashboard"
# This template has the button for single sign-on.
admin.site.login_template = "proxy/signin/login.html"
