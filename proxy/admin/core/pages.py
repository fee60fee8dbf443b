"""What the pages of the admin share: their context, the check of the reader, and their links."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from proxy.permissions.row_permissions import (
    Reader,
    can_open_admin,
    reader_of_user,
    visible_teams,
)

READ_TRANSCRIPT: Final = "proxy.view_transcript"
READ_RAW: Final = "proxy.view_part"  # permission to read raw request and response bodies
MAX_URL: Final = 4000
MAX_TEAMS: Final = 300
TEXT_MODES: Final[Mapping[str, str]] = {"rendered": "Rendered", "raw": "Raw"}
"""The ways to show the texts of a conversation, with their labels; the first is the default."""


def require_reader(request: HttpRequest, *permissions: str) -> Reader:
    """Return the rights of the signed-in user.

    Raises PermissionDenied if the user may not see any requests of the ledger, or lacks one of the
    permissions.
    """
    if not (can_open_admin(request.user) and request.user.has_perms(permissions)):
        raise PermissionDenied
    return reader_of_user(request.user)


def page(request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
    """Return a page of the admin. ``template``: its path below ``admin/proxy``, without .html."""
    values = {**admin.site.each_context(request), "title": title, **context}
    return TemplateResponse(request, f"admin/proxy/{template}.html", values)


def add_errors(form: forms.Form, error: ValidationError, names: Mapping[str, str | None]) -> None:
    """Add the errors of a row to the form. ``names``: column -> field, if they differ."""
    for column, messages in error.message_dict.items():
        name = names.get(column, column)
        form.add_error(name if name in form.fields else None, messages)


def page_to_return_to(request: HttpRequest) -> str:
    """Return the query's ``next`` if it is a page of this admin, else the first page."""
    url, index = request.GET.get("next", ""), reverse("admin:index")
    is_here = url.startswith(index) and len(url) <= MAX_URL
    return url if is_here and url_has_allowed_host_and_scheme(url, allowed_hosts=None) else index


def whole_number(text: str, digits: int) -> int | None:
    """Return the number that a query parameter has; None if it is none of so many digits."""
    is_number = text.isascii() and text.isdigit() and len(text) <= digits
    return int(text) if is_number else None


def team_names(reader: Reader) -> list[str]:
    """Return the names of the teams that a page offers as choices."""
    names = visible_teams(reader).order_by("name").values_list("name", flat=True)
    return list(names[:MAX_TEAMS])


def query_string(values: Mapping[str, Any]) -> str:
    """Return the URL of the open page with these parameters, without the empty ones."""
    return "?" + urlencode({name: value for name, value in values.items() if value})


def choice_links(
    labels: Mapping[str, str], current: str, url: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Return a link for each choice. ``url`` returns the open page with another choice."""
    return [
        {"slug": name, "label": label, "url": url(name), "current": name == current}
        for name, label in labels.items()
    ]


def text_mode(request: HttpRequest) -> str:
    """Return the mode that the query parameter ``text`` or the last visit chose.

    A new choice is stored in Django's session.
    """
    default = next(iter(TEXT_MODES))
    stored = request.session.get("text_mode", default)
    chosen = str(request.GET.get("text", stored))
    if chosen not in TEXT_MODES:
        chosen = default
    if chosen != stored:
        request.session["text_mode"] = chosen
    return chosen


def text_mode_links(request: HttpRequest, mode: str) -> list[dict[str, Any]]:
    """Return the links of the switch: the open page, with the parameter ``text``."""
    kept = {name: value for name, value in request.GET.items() if name != "text"}
    return choice_links(TEXT_MODES, mode, lambda name: f"?{urlencode({**kept, 'text': name})}")
