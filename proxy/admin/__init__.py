"""Django admin: windows on the ledger and the forms for keys, routes and budgets."""

from django.contrib import admin

from . import budgets, drift, keys, ledger, people, routes

__all__ = ["budgets", "drift", "keys", "ledger", "people", "routes"]

admin.site.index_title = "Dashboard"
admin.site.login_template = "proxy/signin/login.html"  # the button of another way in
