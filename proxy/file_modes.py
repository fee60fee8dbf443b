"""Check that other users of the machine cannot write to the files that the gateway trusts."""

import errno
import stat
from typing import Final

WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class WritableByOthers(PermissionError):
    """Other users may write to a file. ``strerror`` names its mode and the command to run."""

    def __init__(self, mode: int, command: str) -> None:
        found = f"mode {stat.S_IMODE(mode):04o} lets other users change it"
        super().__init__(errno.EPERM, f"{found}; check it, then run {command}")


def refuse_writable_by_all(path: object, mode: int) -> None:
    """Raise WritableByOthers if every user may write to this file. ``mode``: its ``st_mode``.

    A group may write to it, because a umask of 002 with a group for each user is a usual default.
    Everyone may read it: Docker and Kubernetes mount secrets with mode 0444 or 0644.
    """
    if mode & stat.S_IWOTH:
        raise WritableByOthers(mode, f"chmod o-w {path}")
