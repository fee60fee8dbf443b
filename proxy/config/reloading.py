"""SIGHUP applies the config file again; a file with a mistake changes nothing.

Gateway keys' secrets that the config file takes from files are looked at all the time: a file with
another secret changes its key within seconds. Upstreams' secrets are the gateway's own to look at.
"""

import logging
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, connections

from proxy.models import Revision
from proxy.record import database_credentials
from proxy.secrets import SECRET_FILES, ConfigError

from .applying import apply
from .reading import read_file
from .schema import BridgeFile

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 2.0


class Reloader:
    """Applies the config file again: the file as it is now, or as it was with newer secrets."""

    def __init__(self, path: Path | None, file: BridgeFile | None = None) -> None:
        self._path = path
        self._file = file or BridgeFile()  # as it was applied last
        self._given = self._secrets()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Install the signal's handler and watch the files. The signal must not kill."""

        def hangup(*_: Any) -> None:
            # In a thread: the handler interrupts the event loop, which must not wait.
            threading.Thread(target=self.reload, name="reload").start()

        signal.signal(signal.SIGHUP, hangup)
        threading.Thread(target=self._watch, name="key-secrets", daemon=True).start()

    def reload(self) -> None:
        """Apply the file, and have every process on this database read its secrets again."""
        with self._lock:
            try:
                Revision.rise()  # whatever is in the file
                if self._path is None:
                    log.warning("SIGHUP: started without --config, so only secrets are read again")
                else:
                    file = read_file(self._path)
                    self._apply(file)
                    self._file = file
                    log.info("reload: %s is applied", self._path)
            except (ConfigError, DatabaseError) as mistake:
                log.error("reload refused, the old configuration stays: %s", mistake)  # noqa: TRY400 - no traceback for a typing error
            finally:
                connections.close_all()  # this thread's

    def look(self) -> None:
        """Give keys the secrets that are in their files now; what cannot be had changes nothing."""
        with self._lock:
            database_credentials.renew()
            given = self._secrets()
            if given == self._given:
                return
            try:
                self._apply(self._file)
            except DatabaseError:
                return  # the next look tries again
            except ConfigError as mistake:
                log.error("a gateway key keeps its secret: %s", mistake)  # noqa: TRY400 - as above
            finally:
                connections.close_all()
            self._given = given

    def _apply(self, file: BridgeFile) -> None:
        for change in apply(file):
            log.info("reload: %s", change)

    def _secrets(self) -> Mapping[str, str]:
        """What is in the files of keys' secrets, by path."""
        found = {}
        for key in self._file.keys:
            if key.secret is not None and key.secret.file:
                try:
                    found[key.secret.file] = SECRET_FILES.read(key.secret.file)
                except ConfigError:
                    continue  # there never was a good one
        return found

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # a bug must not end the thread: no rotation would be seen again
                log.exception("the secrets of gateway keys cannot be looked at")
