"""The page that says that a request or a session is in an archived month (ADR 0015)."""

from collections.abc import Sequence

from django.http import Http404

from proxy.ledger.archive.reading import restore_hint


class ArchivedPage(Http404):
    """What the page shows may be in one of these months, so it is not in the database.

    It says nothing about whether it exists: the months are those of its id or of the ledger.
    """

    def __init__(self, months: Sequence[str]) -> None:
        self.hint = restore_hint(months)
        super().__init__(self.hint)
