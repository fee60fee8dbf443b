"""The URLs of the reports under /api/v1/. Each path works with and without a trailing slash."""

from django.urls import path, re_path

from .core.exception_handler import not_found
from .routes import VIEWS
from .schema_views import DocsView, SchemaView


def _name(route: str) -> str:
    words = [part for part in route.split("/") if not part.startswith("<")]
    return "-".join(words) + ("-one" if "<" in route else "")


app_name = "reports"
urlpatterns = [
    *(path(f"{route}/", view.as_view(), name=_name(route)) for route, view in VIEWS.items()),
    *(path(route, view.as_view()) for route, view in VIEWS.items()),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("docs/", DocsView.as_view(), name="docs"),
    re_path(r"\A(?P<rest>(?s:.*))\Z", not_found),
]
