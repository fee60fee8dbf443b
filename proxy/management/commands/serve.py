"""Start the gateway. Without any configuration it makes everything that a first answer needs."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connection

from proxy import logs
from proxy.checks import INSTALLATION, refuse_unsafe_settings
from proxy.conf import conf
from proxy.config import (
    applying,
    arrival,
    datadir,
    first_start,
    greeting,
    reading,
    serving,
    turns,
    variables,
)
from proxy.config.schema import BridgeFile
from proxy.config.upstreams import check_used_upstreams, sandbox_url
from proxy.management.base import FINDING, MISUSE, BridgeCommand
from proxy.record.recorder import recorder
from proxy.sandbox import server as sandbox


class Command(BridgeCommand):
    help = "Run the gateway; a first start makes data directory, database, key and admin user."
    requires_system_checks = [INSTALLATION]  # all others would load every page first
    example = "manage.py serve --host 0.0.0.0 --port 8000 --config bridge.toml"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--port", default=8000, type=int, help="port to listen on; 0: any")
        parser.add_argument(
            "--workers", default=settings.WORKERS, type=int, help="processes that serve"
        )
        parser.add_argument("--config", type=Path, help="a bridge.toml to apply before the start")

    def handle(self, *args: Any, **options: Any) -> None:
        host, workers = options["host"], options["workers"]
        if workers < 1:
            raise CommandError("--workers must be 1 or more", returncode=MISUSE)
        os.environ["BRIDGE_WORKERS"] = str(workers)  # the workers share their limits if several
        file = reading.read_file(options["config"]) if options["config"] else None
        refuse_unsafe_settings(host)
        variables.check_early(os.environ, file)
        with ExitStack() as stack:
            datadir.prepare(conf.data_dir)
            stack.callback(datadir.Lock(conf.data_dir).release)
            listener = stack.enter_context(serving.bind(host, options["port"]))
            datadir.ensure_secret_key()
            url = greeting.base_url(host, listener.getsockname()[1])

            def prepare() -> None:
                self._make_admin(self._prepare(file, url, stack, workers))

            waiting = due = None
            try:
                due = self._prepare(file, url, stack, workers)
            except arrival.DatabaseAway as away:
                self.stderr.write(greeting.AWAY.format(cause=away))
                waiting = stack.enter_context(arrival.Waiting(prepare))

            def announce() -> None:
                self._make_admin(due)
                stack.callback(datadir.Address(conf.data_dir, url).withdraw)
                self.stdout.write(f"\nMessages Bridge listens on {url}  (data: {conf.data_dir})\n")
                self.stdout.flush()

            self.stdout.flush()
            logs.never_wait()
            served = serving.run(listener, workers, conf, options["config"], announce, file=file)
            if waiting and waiting.mistake:
                raise waiting.mistake
            if not served:
                raise CommandError("the server did not start; see above", returncode=FINDING)

    def _prepare(
        self, file: BridgeFile | None, url: str, stack: ExitStack, workers: int
    ) -> first_start.AdminPassword | None:
        """All that needs the database. Raises DatabaseAway or ConfigError.

        Returns what there is to wait for: the password whose user is made when the hash is there.
        """
        with arrival.reached():
            with turns.in_turn():
                password = first_start.AdminPassword() if arrival.is_new() else None
                first_start.migrate()
                variables.check_environment(os.environ, file)
                for change in applying.apply(file) if file else ():
                    self.stdout.write(str(change))
                check_used_upstreams()
                sandbox_socket = sandbox.free_socket(sandbox_url().port or 0)
                stack.callback(sandbox_socket.close)
                if workers == 1:  # else each has a record of its own
                    recorder.prepare()
                serving.load()  # while the password is hashed, and the record's writer starts
                made = first_start.fill_gaps(sandbox.url_of(sandbox_socket), password=password)
                due = password if made.admin_password else None
                if due and connection.vendor == "postgresql":  # the next in turn must find the user
                    due.make_user()
                    due = None
            needs_sandbox = bool(sandbox_url().port)
        self._greet(made, url)
        connection.close()  # this thread asks no more: 1.3 MB of pages and statements
        if needs_sandbox:
            stack.enter_context(sandbox.running(sandbox_socket))
            self.stdout.write(f"\n{greeting.SANDBOX_NOTICE}")
        self.stdout.flush()
        return due

    def _make_admin(self, due: first_start.AdminPassword | None) -> None:
        """Beside the first requests: the hash takes a third as long as all the rest."""
        if due is None:
            return
        try:
            due.make_user()
        except DatabaseError as error:
            told = f"the admin user cannot be made: {error}; the next start makes it"
            self.stderr.write(told)
        finally:
            connection.close()  # this thread's

    def _greet(self, made: first_start.Made, url: str) -> None:
        if made.anything:
            new = not settings.ADMIN_PASSWORD
            self.stdout.write(greeting.first_contact(made, url, password_is_new=new))
