"""The Django URLs of the reports API and of sign-in.

The URLs of the admin and the gateway are defined elsewhere.
"""

from django.urls import include, path

urlpatterns = [
    path("sign-in/", include("proxy.signin.urls")),
    path("api/v1/", include("proxy.reports.urls")),
    path("v1/organizations/", include("proxy.reports.organizations.urls")),
]
