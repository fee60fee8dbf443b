"""Erase the data of one person everywhere in the gateway; sums of tokens and money stay."""

import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q
from rich.progress import TaskID
from rich.table import Table

from proxy.bootstrap import data_directory
from proxy.erasure import account, erase, erased_users
from proxy.erasure.person import MARK, Person
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import progress, render_table
from proxy.models import ApiKey, FormerName, NameKind, UsageByCallerDay, ledger_names
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = (
        "Erase the data of one user: account, keys, transcripts, and the name in requests, sums, "
        "archived months, journals and the audit log. Tokens and money stay, under a pseudonym. "
        "Exit 1 if something is left: run it again."
    )
    example = "manage.py eraseuser ada --dry-run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", help="name or id of the user; the account may be deleted")
        parser.add_argument(
            "--dry-run", action="store_true", help="only show what would be erased, with counts"
        )
        parser.add_argument(
            "--yes", action="store_true", help="do not ask; needed without a terminal"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        data_directory.ensure_secret_key()
        person = _load(options["user"])
        if options["dry_run"]:
            self._show(erase.count(person), options, "would be erased")
            return
        if account.is_last_superuser(person):
            raise ConfigError(f"{person.name} is the last superuser: make another one first")
        if not options["yes"]:
            self._confirm(person)
        managed = ApiKey.objects.filter(pk__in=person.keys, managed=True).count()
        try:
            with progress() as bar:
                tasks: dict[str, TaskID] = {}

                def advance(step: str, rows: int) -> None:
                    if step not in tasks:
                        tasks[step] = bar.add_task(step, total=None)
                    bar.advance(tasks[step], rows)

                done = erase.erase(person, advance)
        except erase.StillRunning as error:
            raise CommandError(
                f"{error}. The user's keys are revoked; run the command again later",
                returncode=FINDING,
            ) from None
        self._show(done, options, "erased")
        if managed:
            self.stderr.write(f"bridge.toml declares {managed} of the keys: remove them there")
        self.stderr.write(
            "Older backups contain the data until you delete them; make a new backup now."
        )
        if done.left:
            raise CommandError(f"not erased: {'; '.join(done.left)}", returncode=FINDING)

    def _confirm(self, person: Person) -> None:
        if not sys.stdin.isatty():
            raise ConfigError("give --yes to erase without a terminal")
        self.stdout.write(f"This cannot be undone. Type {person.name} to erase this user:")
        if sys.stdin.readline().strip() != person.name:
            raise ConfigError("nothing was erased")

    def _show(self, found: erase.Erasure, options: dict[str, Any], title: str) -> None:
        if options["json"]:
            self.write_json(asdict(found))
            return
        table = Table("", title)
        for name, number in found.counts.items():
            table.add_row(name.replace("_", " "), f"{number:,}")
        table.add_row("pseudonym", found.pseudonym)
        self.stdout.write(render_table(table))


def _load(name: str) -> Person:
    """Return the person. Raises ConfigError if nothing has this name."""
    accounts = ledger_names.Person.objects.filter(Q(pk=name) | Q(user__username=name))
    former = FormerName.objects.filter(Q(ident=name) | Q(name=name), kind=NameKind.USER)
    known = [each.pk for each in accounts] or [each.ident for each in former]
    if len(known) > 1:
        ids = ", ".join(known)
        raise ConfigError(f"{len(known)} users have or had the name {name!r}: give one of {ids}")
    person = Person.load(known[0] if known else name)
    sums = UsageByCallerDay.objects.filter(user__in=(person.id, person.pseudonym))
    is_erased = any(person.pseudonym == f"{MARK}{each[:16]}" for each in erased_users.read())
    if name.startswith(MARK) or not (is_erased or known or sums.exists()):
        raise ConfigError(f"no user and no request has the name {name!r}")
    return person
