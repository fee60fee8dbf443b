"""What proxy mounts in Django: reports, sign-in; admin and gateway have doors of their own."""

from django.urls import include, path

urlpatterns = [
    path("sign-in/", include("proxy.signin.urls")),
    path("api/v1/", include("proxy.reports.urls")),
    path("v1/organizations/", include("proxy.reports.organizations.urls")),
]
