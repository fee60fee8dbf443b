"""Outcomes: what coding agents did, derived from the tool calls in stored transcripts.

The rows are deleted when the retention of their team ends, as their transcripts are.
"""

from django.db import models

from .rollups import UsageBySessionDay, counter_field, name_field


class SessionOutcomeDay(models.Model):
    """The outcomes of the requests that one row of ``UsageBySessionDay`` sums.

    Both rows have the same primary key. The outcome exists first: the usage of a request is summed
    when it ends. A count is 0 also if nothing was read; ``requests_read`` is 0 then.
    """

    usage = models.OneToOneField(
        UsageBySessionDay,
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="outcome",
    )
    team = name_field()
    start = models.DateTimeField()  # start of the UTC day
    repository = name_field(200)  # name of the working directory, if it is a git repository
    branch = name_field(200)

    requests_read = counter_field()  # number of requests whose tool calls were read
    requests_unread = counter_field()  # number of requests without a stored transcript
    tool_results = counter_field()
    # Edits by tool and result. Rejected: the user refused the call. Failed: any other error.
    edit_accepted = counter_field()
    edit_rejected = counter_field()
    edit_failed = counter_field()
    multi_edit_accepted = counter_field()
    multi_edit_rejected = counter_field()
    multi_edit_failed = counter_field()
    write_accepted = counter_field()
    write_rejected = counter_field()
    write_failed = counter_field()
    notebook_edit_accepted = counter_field()
    notebook_edit_rejected = counter_field()
    notebook_edit_failed = counter_field()
    files_edited = counter_field()  # number of files, each once in its session
    lines_added = counter_field()
    lines_removed = counter_field()
    edits_without_lines = counter_field()  # number of accepted edits whose lines are unknown
    commands_run = counter_field()
    commands_failed = counter_field()
    commands_rejected = counter_field()
    test_runs = counter_field()  # number of commands that run tests, not of tests
    test_runs_passed = counter_field()
    test_runs_failed = counter_field()
    commits_reported = counter_field()  # git printed the commit
    commits_derived = (
        counter_field()
    )  # commits of successful ``git commit`` calls that printed nothing
    commit_lines_added = counter_field()  # as git printed it
    commit_lines_removed = counter_field()
    commits_without_lines = counter_field()
    pull_requests = counter_field()

    class Meta:
        indexes = [models.Index(fields=["team", "start"])]

    def __str__(self) -> str:
        return f"{self.tool_results} tool results of {self.team} on {self.start:%Y-%m-%d}"


class CountedToolCall(models.Model):
    """A tool call or an edited file that was counted: clients resend their history."""

    id = models.BinaryField(max_length=16, primary_key=True)  # digest of the call
    team = name_field()
    created = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["team", "created"])]

    def __str__(self) -> str:
        return f"tool call of {self.team} at {self.created}"
