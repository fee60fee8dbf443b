"""The TCP sockets of another process, read from /proc."""

import contextlib
from pathlib import Path
from typing import NamedTuple, Self

LISTEN = "0A"
ESTABLISHED = "01"


class Socket(NamedTuple):
    local: int  # port
    remote: int  # port
    state: str  # hexadecimal, as in /proc/net/tcp
    unread: int  # bytes in the receive queue


class Sockets(NamedTuple):
    """The TCP sockets of one process."""

    found: tuple[Socket, ...]

    @classmethod
    def of(cls, pid: int) -> Self:
        inodes = {name[8:-1] for name in open_files(pid) if name.startswith("socket:[")}
        return cls(
            tuple(
                Socket(
                    _port(fields[1]),
                    _port(fields[2]),
                    fields[3],
                    int(fields[4].partition(":")[2], 16),
                )
                for table in ("tcp", "tcp6")
                for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
                if (fields := line.split())[9] in inodes
            )
        )

    def at(self, port: int) -> list[Socket]:
        """Return the accepted connections at this port."""
        return [each for each in self.found if each.local == port and each.state != LISTEN]

    def busy(self, port: int) -> list[Socket]:
        """Return the accepted connections whose client is still connected."""
        return [each for each in self.at(port) if each.state == ESTABLISHED]

    def to(self, port: int) -> list[Socket]:
        """Return the outgoing connections to this port."""
        return [each for each in self.found if each.remote == port and each.local != port]


def open_files(pid: int) -> list[str]:
    """Return the target of each file descriptor of the process."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the listing
            found.append(str(entry.readlink()))
    return found


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)
