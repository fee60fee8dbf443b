"""What an address of the admin may ask of the database.

Django filters a list by any column that the address names, so whoever may open a list could learn
what stands in columns that it does not show, such as a key's digest; and some values raise only
when the query runs. Here a list is filtered by its own filters, and a bad value is none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AutocompleteSelect
from django.db import DataError
from django.db.models import QuerySet
from django.http import HttpRequest

if TYPE_CHECKING:
    Admin = admin.ModelAdmin[Any]
else:
    from unfold.admin import ModelAdmin as Admin

SENT_BY_FILTERS: Final = frozenset({"exact", "isnull", "gte", "lt", "id__exact"})
"""The lookups in the links of Django's filters, after the name of the field."""
MOST_WORDS: Final = 20
"""Of a search: each is a condition, and SQLite nests at most 1,000."""
LONGEST_SEARCH: Final = 500
LONGEST_KEY: Final = 18
"""Digits that surely fit into the keys of our tables, which are 64-bit numbers."""


@contextmanager
def refusing_bad_values() -> Iterator[None]:
    """A value that only the query refuses is a wrong one, not a fault of ours."""
    try:
        yield
    except (ValueError, OverflowError, DataError) as wrong:
        raise IncorrectLookupParameters(str(wrong)) from None


class CheckedList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        with refusing_bad_values():
            super().get_results(request)


class CheckedQueries(Admin):
    """Every admin class of ours."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CheckedList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        field, _, rest = lookup.partition("__")
        filters = self.get_list_filter(request)
        return field in filters and rest in SENT_BY_FILTERS and "\x00" not in value

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        words = search_term[:LONGEST_SEARCH].replace("\x00", " ").split()
        return super().get_search_results(request, queryset, " ".join(words[:MOST_WORDS]))


class CheckedAutocomplete(AutocompleteSelect):
    """Shows a value that is no key as no choice; Django's own raises, in forms and in links."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        keys = [one for one in map(str, value) if is_key(one)]
        return super().optgroups(name, keys, attr)


def is_key(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LONGEST_KEY
