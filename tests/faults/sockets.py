"""The TCP sockets of another process, from /proc: who still holds a connection, and to whom."""

import contextlib
from pathlib import Path
from typing import NamedTuple, Self

LISTEN = "0A"
ESTABLISHED = "01"


class Socket(NamedTuple):
    local: int  # ports
    remote: int
    state: str  # as the kernel writes it, in hex
    unread: int  # bytes that the process has not taken yet


class Sockets(NamedTuple):
    """All that one process has open."""

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
        """Connections that came in at this port."""
        return [each for each in self.found if each.local == port and each.state != LISTEN]

    def busy(self, port: int) -> list[Socket]:
        """Those of them whose client is still there."""
        return [each for each in self.at(port) if each.state == ESTABLISHED]

    def to(self, port: int) -> list[Socket]:
        """Connections that went out to this port."""
        return [each for each in self.found if each.remote == port and each.local != port]


def open_files(pid: int) -> list[str]:
    """What each of its file descriptors is."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(entry.readlink()))
    return found


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)
