"""Limits on the lookups that a URL of the admin may contain.

Django filters a change list by any column that the query string names. A user who may open a list
could therefore guess the values of hidden columns, such as a key's digest. Here a list accepts only
the columns in its ``list_filter``. A value that fails only when the query runs, such as a number
that is too large, is handled as an invalid lookup.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import PermissionDenied
from django.db import DataError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path, reverse

from .pages import whole_number

if TYPE_CHECKING:
    Admin = admin.ModelAdmin[Any]
else:
    from unfold.admin import ModelAdmin as Admin

OwnUrls = Sequence[tuple[str, Callable[..., HttpResponseBase], str]]
"""Path below the list, view and name of each page that Django's admin does not have."""
SENT_BY_FILTERS: Final = frozenset({"exact", "isnull", "gte", "lt", "id__exact"})
"""The lookup suffixes that Django's own list filters use in their links, such as ``__gte``."""
MAX_SEARCH_WORDS: Final = 20
"""Each word of a search adds a condition, and SQLite allows at most 1,000 nested conditions."""
MAX_SEARCH_LENGTH: Final = 500
MAX_KEY_DIGITS: Final = 18
"""Maximum digits of a primary key in a URL: such a number always fits into 64 bits."""


@contextmanager
def reject_bad_values() -> Iterator[None]:
    """Convert a query's error about a bad lookup value to IncorrectLookupParameters."""
    try:
        yield
    except (ValueError, OverflowError, DataError) as exc:
        raise IncorrectLookupParameters(str(exc)) from None


class CheckedChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        with reject_bad_values():
            super().get_results(request)


class CheckedModelAdmin(Admin):
    """Base of all model admins: allows only the lookups of its ``list_filter``; limits searches."""

    actions = None
    """The theme's action bar needs an inline style, which the CSP blocks, and deleting many rows at
    once would skip the check of each single row."""
    heading = ""
    """The title of the list; empty: the plural name of the model."""

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list with its heading, not "Select … to change", as the title."""
        title = self.heading or str(self.opts.verbose_name_plural).capitalize()
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def own_urls(self) -> OwnUrls:
        return ()

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [path(route, view(page), name=name) for route, page, name in self.own_urls()]
        return own + super().get_urls()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CheckedChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        field, _, rest = lookup.partition("__")
        filters = self.get_list_filter(request)
        names = {one[0] if isinstance(one, tuple) else one for one in filters}
        return field in names and rest in SENT_BY_FILTERS and "\x00" not in value

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Write no entry of Django's own log: ``proxy.audit_log`` records every change."""

    log_change = log_deletion = log_addition

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Write no entry of Django's own log, as above."""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect the button "History" to the object's entries in the audit log."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(audit_url(self.model, unquote(object_id)))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        words = search_term[:MAX_SEARCH_LENGTH].replace("\x00", " ").split()
        return super().get_search_results(request, queryset, " ".join(words[:MAX_SEARCH_WORDS]))


def audit_url(model: type[Model], object_id: str) -> str:
    """Return the URL of the audit log with the entries of one object."""
    query = urlencode({"model": model._meta.verbose_name, "object": object_id})  # noqa: SLF001 - documented by Django
    return f"{reverse('admin:proxy_auditentry_changelist')}?{query}"


class CheckedAutocomplete(AutocompleteSelect):
    """An autocomplete that ignores values that are no primary keys; Django's raises an error."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        keys = [text for text in map(str, value) if whole_number(text, MAX_KEY_DIGITS) is not None]
        return super().optgroups(name, keys, attr)
