"""SIGHUP applies the config file again; a file with a mistake changes nothing."""

import logging
import signal
import threading
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connections

from proxy.secrets import ConfigError

from .applying import apply
from .reading import read_file

log = logging.getLogger(__name__)


def reload_on_hangup(path: Path | None) -> None:
    """Install the handler. Without a file the signal is noted and does nothing, not even kill."""

    def hangup(*_: Any) -> None:
        # In a thread: the handler interrupts the event loop, which must not wait for a database.
        threading.Thread(target=reload, args=(path,), name="reload").start()

    signal.signal(signal.SIGHUP, hangup)


def reload(path: Path | None) -> None:
    if path is None:
        log.warning("SIGHUP: started without --config, so there is nothing to reload")
        return
    try:
        for change in apply(read_file(path)):
            log.info("reload: %s", change)
        log.info("reload: %s is applied", path)
    except (ConfigError, DatabaseError) as mistake:
        log.error("reload refused, the old configuration stays: %s", mistake)  # noqa: TRY400 - no traceback for a typing error
    finally:
        connections.close_all()  # this thread's
