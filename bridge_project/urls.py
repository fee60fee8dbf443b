"""Django's root URLs. The Messages API is routed before Django, in proxy/routing.py."""

from django.contrib import admin
from django.urls import include, path

from proxy.admin.urls import admin_urls

admin.autodiscover()  # LazyAdminConfig does not load the admin pages at startup
handler400 = "proxy.reports.core.exception_handler.bad_request"
handler500 = "proxy.reports.core.exception_handler.server_error"
urlpatterns = [path("admin/", admin_urls()), path("", include("proxy.urls"))]
