"""A change list that pages by key: no count, no OFFSET, as fast on page 1,000 as on page 1."""

from typing import Any, Final
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import HttpRequest

from .lookups import CheckedList, refusing_bad_values
from .patience import TooSlow, patient

BEFORE: Final = "older_than"
AFTER: Final = "newer_than"


class KeysetChangeList(CheckedList):
    """Rows newest first; ``older_than`` and ``newer_than`` name the row beside the page."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self._before = request.GET.get(BEFORE, "")
        self._after = request.GET.get(AFTER, "")
        super().__init__(request, *args, **kwargs)

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        found = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in {BEFORE, AFTER}}

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["-created", "-pk"]

    def get_results(self, request: HttpRequest) -> None:
        """What was found in time; ``too_slow`` says that it was not."""
        self.too_slow = False
        try:
            with patient(), refusing_bad_values():
                found, more_newer, more_older = self._found()
        except TooSlow:
            self.too_slow = True
            found, more_newer, more_older = [], False, False
        self.newer_url = self._page(AFTER, found[0].pk) if found and more_newer else ""
        self.older_url = self._page(BEFORE, found[-1].pk) if found and more_older else ""
        self.newest_url = self._page("", "") if self._before or self._after else ""
        self.result_list = found
        self.result_count = len(found)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = False
        self.paginator = Paginator(found, self.list_per_page)

    def _found(self) -> tuple[list[Any], bool, bool]:
        """The page's rows, and whether there are newer and older ones.

        One query for the page and the row after it. By time first, since that is what every index
        of the ledger begins or ends with: nothing is sorted.
        """
        size = self.list_per_page
        rows = self.queryset
        after, before = self._row(self._after), self._row(self._before)
        if after:
            beyond = rows.filter(created__gte=after.created).exclude(
                created=after.created, pk__lte=after.pk
            )
            found = list(beyond.order_by("created", "pk")[: size + 1])
            more_newer, more_older = len(found) > size, True
            found = found[:size][::-1]
        else:
            if before:
                rows = rows.filter(created__lte=before.created).exclude(
                    created=before.created, pk__gte=before.pk
                )
            found = list(rows[: size + 1])
            more_newer, more_older = before is not None, len(found) > size
            found = found[:size]
        return found, more_newer, more_older

    def _row(self, key: str) -> Any:
        """The row beside the page; None: no such row, and the page is the newest."""
        return self.root_queryset.filter(pk=key).only("created").first() if key else None

    def _page(self, name: str, key: str) -> str:
        params = {k: v for k, v in self.filter_params.items() if k not in {BEFORE, AFTER}}
        if name:
            params[name] = [key]
        return "?" + urlencode(sorted(params.items()), doseq=True)
