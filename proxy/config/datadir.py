"""The data directory: who may read it, who is using it, and the secret key in it."""

import fcntl
import os
from pathlib import Path
from typing import Final

from django.conf import settings

from proxy.secrets import ConfigError, has_root, new_root

ADDRESS: Final = "serve.url"
URL_LENGTH: Final = 300  # a host name has at most 253 characters
PRIVATE: Final = 0o077  # umask: what we write is for this user alone


def prepare(path: Path) -> None:
    """Make the directory (0700) if it is missing, and see that we may write to it."""
    os.umask(PRIVATE)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(path.iterdir()):
            path.chmod(0o700)  # a fresh mount is often open to all; a full one is not ours to close
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise ConfigError(f"data directory {path}: {error.strerror}") from None


class Lock:
    """One gateway for one data directory. The kernel frees the lock with the process."""

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
    """Where the gateway of a data directory listens, for the commands beside it: ``serve.url``.

    The kernel frees the lock with the process, so a gateway that was killed leaves no address.
    """

    def __init__(self, path: Path, url: str) -> None:
        self._file = (path / ADDRESS).open("a")
        fcntl.flock(self._file, fcntl.LOCK_EX)  # ``address_of`` has it for microseconds only
        self._file.truncate(0)
        self._file.write(url)
        self._file.flush()

    def withdraw(self) -> None:
        self._file.truncate(0)
        self._file.close()


def address_of(path: Path) -> str:
    """Return the URL of the gateway that runs on this data directory, "" where none does."""
    try:
        with (path / ADDRESS).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(URL_LENGTH)
    except OSError:
        pass  # no gateway has run here, or this user may not see it
    return ""


def ensure_secret_key() -> None:
    """Make ``<data>/secret_key`` (0600) unless a key exists, and give it to the settings."""
    if has_root():
        return
    path: Path = settings.SECRET_KEY_PATH
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_root())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass  # a command beside us was quicker
    key = path.read_text(encoding="ascii").strip()
    if not key:
        raise ConfigError(f"{path} is empty; restore it from a backup, or remove it to start anew")
    settings.SECRET_KEY = key
