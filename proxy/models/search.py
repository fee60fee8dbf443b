"""The full-text index of transcripts: which part a team stored, and which requests sent it.

The terms of each entry are in the database's own full-text index, which
``proxy.ledger.search.term_index`` reads and writes.
"""

from django.db import models

from .ledger import Exchange, Part


class SearchEntry(models.Model):
    """A part in the search index of one team.

    A part is indexed once for each team that stored it, so that a search of one team reads only
    that team's part of the index. Ids rise in the order in which the texts were stored.
    """

    id = models.BigAutoField(primary_key=True)
    # The parts have no foreign key: each part would be checked when it is pruned.
    part = models.ForeignKey(
        Part, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    team = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["part", "team"], name="searchentry_part_team")
        ]

    def __str__(self) -> str:
        return f"part {self.part_id} of {self.team}"


class SearchOccurrence(models.Model):
    """A request that added an entry's text to its conversation, as a new message or a response.

    Later requests of the conversation repeat the text and have no row.
    """

    pk = models.CompositePrimaryKey("entry_id", "exchange_id")
    entry = models.ForeignKey(
        SearchEntry, on_delete=models.CASCADE, db_index=False, related_name="occurrences"
    )
    exchange = models.ForeignKey(
        Exchange, on_delete=models.DO_NOTHING, db_constraint=False, related_name="occurrences"
    )

    def __str__(self) -> str:
        return f"entry {self.entry_id} in {self.exchange_id}"
