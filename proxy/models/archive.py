"""The state of the archive: which months of requests are, or will be, in a Parquet file."""

from django.db import models


class ArchiveState(models.TextChoices):
    """The states of a month: writing -> archived -> removing -> removed -> restored.

    A month whose requests were changed after it was archived returns to writing. A restored month
    can be removed again; the schedule leaves it.
    """

    WRITING = "writing"  # no complete file; the next run writes it from the start
    ARCHIVED = "archived"  # the file is complete and verified; the rows are still in the ledger
    REMOVING = "removing"  # the rows with ids up to ``removed_to`` are only in the file
    REMOVED = "removed"  # all rows are in the file; an incomplete restore has copied some back
    RESTORED = "restored"  # all rows are in the database again; the files stay


class ArchivedMonth(models.Model):
    """A month of requests (UTC, by the time of their acceptance) and its Parquet files.

    One file has the rows, the other their transcripts; without transcripts there is no such file.
    """

    month = models.DateField(primary_key=True)  # its first day
    state = models.CharField(
        max_length=8, choices=ArchiveState.choices, default=ArchiveState.WRITING
    )
    # An absolute folder, one relative to the data directory, or s3://bucket/prefix.
    location = models.CharField(max_length=500)
    # Raised when a user is erased from a month whose rows are only in the file: the new file has a
    # name of its own, so that the row names one of both at any time.
    version = models.PositiveIntegerField(default=1)
    sha256 = models.CharField(max_length=64, blank=True)  # of the file, in hexadecimal
    file_bytes = models.PositiveBigIntegerField(default=0)
    # The file of transcripts; it is written again when users are erased and transcripts expire.
    transcripts_version = models.PositiveIntegerField(default=1)
    transcripts_sha256 = models.CharField(max_length=64, blank=True)  # empty: there is no file
    transcripts = models.PositiveBigIntegerField(default=0)
    rows = models.PositiveBigIntegerField(default=0)
    first_id = models.CharField(max_length=30, blank=True)  # the lowest id of the rows
    last_id = models.CharField(max_length=30, blank=True)
    cost_nanousd = models.BigIntegerField(default=0)  # the sum of the known costs
    # The end of the hash chain when the rows were read: a newer link of one of these rows means
    # that the row was changed after that.
    head_sequence = models.BigIntegerField(default=0)
    head_digest = models.BinaryField(max_length=32, default=bytes(32))
    archived = models.DateTimeField(null=True)  # null: there is no complete file
    removed_to = models.CharField(max_length=30, blank=True)  # the last id that was removed

    class Meta:
        ordering = ["month"]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} ({self.state})"

    @property
    def file(self) -> str:
        """The name of the file at its location."""
        return self.file_of(self.version)

    def file_of(self, version: int, content: str = "requests") -> str:
        """Return the name of the file of another version."""
        suffix = "" if version == 1 else f"-v{version}"
        return f"{content}-{self.month:%Y-%m}{suffix}.parquet"

    @property
    def transcripts_file(self) -> str:
        """The name of the file of transcripts at its location."""
        return self.transcripts_file_of(self.transcripts_version)

    def transcripts_file_of(self, version: int) -> str:
        return self.file_of(version, "transcripts")
