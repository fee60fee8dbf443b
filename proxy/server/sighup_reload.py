"""Apply the config file again on SIGHUP; a file with an error changes nothing.

The files that contain secrets of gateway keys are read every two seconds: a changed file changes
its key. The gateway itself reads the files with secrets of upstreams.
"""

import logging
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, connections

from proxy.config.apply import apply
from proxy.config.load import BridgeFile, read_in_child
from proxy.ledger.database import access
from proxy.models import Revision
from proxy.secrets import SECRET_FILES, ConfigError

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 2.0


class Reloader:
    """Applies the config file again: its current text, or the last one with new secrets."""

    def __init__(self, path: Path | None, file: BridgeFile | None = None) -> None:
        self._path = path
        self._file = file or BridgeFile()  # the configuration that was applied last
        self._applied_contents = self._file_contents()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Install the handler of SIGHUP, which must not end the process, and watch the files."""

        def on_sighup(*_: Any) -> None:
            # In a thread: the handler interrupts the event loop, which must not wait.
            threading.Thread(target=self.reload, name="reload").start()

        signal.signal(signal.SIGHUP, on_sighup)
        threading.Thread(target=self._watch, name="key-secrets", daemon=True).start()

    def reload(self) -> None:
        """Apply the file, and make every process on this database read its secrets again."""
        with self._lock:
            try:
                Revision.bump()  # secrets may have changed although the file has not
                if self._path is None:
                    log.warning("SIGHUP: started without --config, so only secrets are read again")
                else:
                    file = read_in_child(self._path)
                    self._apply(file)
                    self._file = file
                    log.info("reload: %s is applied", self._path)
            except (ConfigError, DatabaseError) as mistake:
                log.error("reload rejected, the old configuration stays active: %s", mistake)  # noqa: TRY400 - a wrong value in the file needs no traceback
            finally:
                connections.close_all()  # close the connections of this thread

    def check_secret_files(self) -> None:
        """Update the keys whose secret files have changed; an unreadable file changes nothing."""
        with self._lock:
            access.renew()
            contents = self._file_contents()
            if contents == self._applied_contents:
                return
            try:
                self._apply(self._file)
            except DatabaseError:
                return  # the next check tries again
            except ConfigError as mistake:
                log.error("the secret of a gateway key is not changed: %s", mistake)  # noqa: TRY400 - a wrong value in the file needs no traceback
            finally:
                connections.close_all()
            self._applied_contents = contents

    def _apply(self, file: BridgeFile) -> None:
        for change in apply(file):
            log.info("reload: %s", change)

    def _file_contents(self) -> Mapping[str, str]:
        """Return the secrets of keys that come from files, by path."""
        found = {}
        for key in self._file.keys:
            if path := (key["secret_reference"] or {}).get("file"):
                try:
                    found[path] = SECRET_FILES.read(path)
                except ConfigError:
                    continue  # the file was never readable
        return found

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(CHECK_EVERY_S):
            try:
                self.check_secret_files()
            except Exception:
                # A bug must not end the thread, because secrets would no longer be rotated.
                log.exception("the secret files of gateway keys cannot be checked")
