"""Start the gateway. The first start creates everything that a first request needs."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connection

from proxy import log_format
from proxy.bootstrap import data_directory, env_check, first_start, wait_for_database
from proxy.bootstrap.sandbox import server as sandbox
from proxy.checks import INSTALLATION, refuse_unsafe_settings
from proxy.conf import conf
from proxy.config import apply, load
from proxy.config.load import BridgeFile
from proxy.config.used_upstreams import check_used_upstreams, sandbox_url
from proxy.erasure import erased_users
from proxy.management.base import FINDING, BridgeCommand
from proxy.secrets import ConfigError
from proxy.server import server, service_manager


class Command(BridgeCommand):
    help = "Run the gateway; the first start creates the database, a key and an admin user."
    requires_system_checks = [INSTALLATION]  # other checks would import the pages, which is slow
    example = "manage.py serve --host 0.0.0.0 --port 8000 --config bridge.toml"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
        )
        parser.add_argument(
            "--port",
            default=8000,
            type=int,
            help="port to listen on (default: 8000); 0: any free port",
        )
        parser.add_argument(
            "--workers",
            default=settings.WORKERS,
            type=int,
            help="number of server processes (default: BRIDGE_WORKERS)",
        )
        parser.add_argument("--config", type=Path, help="a bridge.toml to apply before the start")

    def handle(self, *args: Any, **options: Any) -> None:
        host, workers = options["host"], options["workers"]
        if workers < 1:
            raise ConfigError("--workers must be 1 or more")
        os.environ["BRIDGE_WORKERS"] = str(workers)  # several workers must share limits
        file = load.read_in_child(options["config"]) if options["config"] else None
        refuse_unsafe_settings(host)
        env_check.check_early(os.environ, file)
        with ExitStack() as stack:
            for note in data_directory.prepare(conf.data_dir):
                self.stderr.write(note)
            stack.callback(data_directory.Lock(conf.data_dir).release)
            listener = stack.enter_context(server.bind(host, options["port"]))
            data_directory.ensure_secret_key()
            url = first_start.base_url(host, listener.getsockname()[1])

            def prepare() -> None:
                self.make_admin(self._prepare(file, url, stack, workers))

            waiting = due = None
            try:
                due = self._prepare(file, url, stack, workers)
            except wait_for_database.DatabaseUnavailable as away:
                self.stderr.write(first_start.DATABASE_UNAVAILABLE.format(cause=away))
                waiting = stack.enter_context(wait_for_database.DatabaseWaiter(prepare))

            def announce() -> None:
                self.make_admin(due)
                stack.callback(data_directory.Address(conf.data_dir, url).withdraw)
                self.stdout.write(f"\nMessages Bridge listens on {url}  (data: {conf.data_dir})\n")
                self.stdout.flush()
                service_manager.notify(service_manager.READY)

            self.stdout.flush()
            log_format.set_stderr_nonblocking()
            served = server.run(listener, workers, conf, options["config"], announce, file=file)
            if waiting and waiting.error:
                raise waiting.error
            if not served:
                raise CommandError("the server did not start; see above", returncode=FINDING)

    def _prepare(
        self, file: BridgeFile | None, url: str, stack: ExitStack, workers: int
    ) -> first_start.AdminPassword | None:
        """Do all start steps that need the database. Raises DatabaseUnavailable or ConfigError.

        Returns the admin password if the admin user must still be created, else None. (A thread
        is hashing the password at the same time.)
        """
        with wait_for_database.require_database():
            with wait_for_database.startup_lock():
                password = first_start.AdminPassword() if wait_for_database.is_new() else None
                first_start.migrate()
                env_check.check_environment(os.environ, file)
                for change in apply.apply(file) if file else ():
                    self.stdout.write(str(change))
                self._erase_again()
                check_used_upstreams()
                sandbox_socket = sandbox.free_socket(sandbox_url().port or 0)
                stack.callback(sandbox_socket.close)
                server.load()  # import the server while the password is hashed
                made = first_start.create_missing(sandbox.url_of(sandbox_socket), password=password)
                due = password if made.admin_password else None
                # The other processes must find the user.
                if due and connection.vendor == "postgresql":
                    due.make_user()
                    due = None
            needs_sandbox = bool(sandbox_url().port)
        self._greet(made, url)
        connection.close()  # this frees 1.3 MB; this thread needs no more queries
        if needs_sandbox:
            stack.enter_context(sandbox.running(sandbox_socket))
            self.stdout.write(f"\n{first_start.SANDBOX_NOTICE}")
        self.stdout.flush()
        return due

    def _erase_again(self) -> None:
        """Erase users whose data came back with an older backup."""
        if erased_users.people_with_data():
            # Few starts need this import, which takes half a second.
            from proxy.erasure import erase  # noqa: PLC0415

            count = erase.erase_again()
            self.stdout.write(f"The database is an older backup; users erased again: {count}")

    def make_admin(self, due: first_start.AdminPassword | None) -> None:
        """Create the admin user after the server has started, because hashing is slow."""
        if due is None:
            return
        try:
            due.make_user()
        except DatabaseError as error:
            message = f"the admin user cannot be created: {error}; the next start creates it"
            self.stderr.write(message)
        finally:
            connection.close()  # close the connection of this thread

    def _greet(self, made: first_start.BootstrapResult, url: str) -> None:
        if made.anything:
            new = not settings.ADMIN_PASSWORD
            self.stdout.write(first_start.first_start_message(made, url, password_is_new=new))
