"""Mounts; the Messages API itself is routed ahead of Django, in asgi.py."""

from django.contrib import admin
from django.urls import include, path

from proxy.admin.urls import admin_urls

admin.autodiscover()  # see AdminOnDemand
handler400 = "proxy.reports.faults.bad_request"
handler500 = "proxy.reports.faults.server_error"
urlpatterns = [path("admin/", admin_urls()), path("", include("proxy.urls"))]
