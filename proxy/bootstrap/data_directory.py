"""Prepare the data directory: permissions, lock, the gateway's address, Django's secret key."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.conf import settings

from proxy.file_modes import WRITABLE_BY_OTHERS, WritableByOthers
from proxy.secrets import ConfigError, has_root, new_root

ADDRESS: Final = "serve.url"
URL_LENGTH: Final = 300  # a host name has at most 253 characters
PRIVATE: Final = 0o077  # umask: only this user may read new files


def prepare(path: Path) -> list[str]:
    """Create the data directory with mode 0700 if it is missing, and make its files private.

    Raises ConfigError if the directory is not writable, or if other users may write to it or to a
    file in it: they may have changed the secret key, the ledger or a journal. Returns notes about
    what other users could read.
    """
    os.umask(PRIVATE)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(path.iterdir()):
            # A newly mounted volume is often open to all users.
            path.chmod(0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
        return _make_private(path)
    except OSError as error:
        raise ConfigError(f"data directory {path}: {error.strerror}") from None


def _make_private(path: Path) -> list[str]:
    """Remove the permissions of other users; return a note for each file that they could read.

    Raises ConfigError if they could write. Kubernetes mounts a volume with ``fsGroup`` as a
    directory of root that the pod's own group may write to, and may add this permission to the
    files in it.
    """
    found = path.stat()
    is_of_own_group = found.st_uid == 0 != os.geteuid() and found.st_gid in os.getgroups()
    refused = stat.S_IWOTH if is_of_own_group else WRITABLE_BY_OTHERS
    entries = [(path, found), *_entries_below(path)]
    for entry, status in entries:
        if status.st_mode & refused:
            fault = WritableByOthers(status.st_mode, f"chmod -R go-w {path}").strerror
            raise ConfigError(f"{entry}: {fault}")
    notes = []
    for entry, status in entries:
        if status.st_mode & PRIVATE and status.st_uid == os.geteuid():
            with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
                entry.chmod(stat.S_IMODE(status.st_mode) & ~PRIVATE)
            notes.append(f"{entry}: other users could read it; now its mode is private")
    return notes


def _entries_below(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each file and directory below ``path`` with its status, without links."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder, name)
            try:
                status = entry.lstat()
            except FileNotFoundError:  # another process has just deleted it
                continue
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                yield entry, status


class Lock:
    """A lock on the data directory, so that only one gateway uses it.

    The kernel releases the lock when the process ends. Raises ConfigError if another gateway has
    the lock.
    """

    def __init__(self, path: Path) -> None:
        self._file = (path / "serve.lock").open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"data directory {path} is in use by another gateway") from None

    def release(self) -> None:
        self._file.close()


class Address:
    """Publishes the URL of the running gateway in the file ``serve.url``, for other commands.

    The file is locked while the gateway runs. The kernel releases the lock when the process ends,
    so commands ignore the URL of a gateway that was killed.
    """

    def __init__(self, path: Path, url: str) -> None:
        self._file = (path / ADDRESS).open("a")
        # This call waits for microseconds at most, because ``address_of`` releases the lock at
        # once.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.truncate(0)
        self._file.write(url)
        self._file.flush()

    def withdraw(self) -> None:
        self._file.truncate(0)
        self._file.close()


def address_of(path: Path) -> str:
    """Return the URL of the gateway that uses this data directory; "" if no gateway runs."""
    try:
        with (path / ADDRESS).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(URL_LENGTH)
    except OSError:
        pass  # no gateway has used this directory, or this user may not read the file
    return ""


def ensure_secret_key() -> None:
    """Set Django's SECRET_KEY; if there is none, create it in ``<data>/secret_key`` (mode 0600)."""
    if has_root():
        return
    path: Path = settings.SECRET_KEY_PATH
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_root())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass  # another command has just created it
    key = path.read_text(encoding="ascii").strip()
    if not key:
        raise ConfigError(f"{path} is empty; restore a backup, or remove it to create a new key")
    settings.SECRET_KEY = key
