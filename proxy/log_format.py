"""Format log records as text or JSON lines, with the request id and without secrets."""

import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

REQUEST: Final[ContextVar[str]] = ContextVar("request", default="")
"""The id of the request that the current code serves; empty outside a request."""

access: Final = logging.getLogger("proxy.access")

HIDDEN: Final = "[hidden]"

CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters that start a new line, color a terminal or reverse text."""


REPEATED_S: Final = 60.0
"""Seconds in which a line is logged only once."""

REPEATED_LINES: Final = 256
"""Maximum number of different lines that are remembered."""


def without_secrets(text: str) -> str:
    """Return the text with credentials replaced.

    The gateway logs none, but an exception's text may contain one.
    """
    from translator.secret_redaction import redact_secrets as redact  # noqa: PLC0415 - the import takes 45 ms

    return redact(text, HIDDEN)


class NonBlockingStderrHandler(logging.StreamHandler[Any]):
    """Write to stderr.

    If the pipe is full, drop the line instead of blocking (docs/promises.md, fault P11).
    """

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not _nonblocking:
            super().emit(record)
            return
        try:
            line = self.format(record) + "\n"
            if self.lost:
                line = f"{self.lost} lines of the log were lost: the pipe was full\n{line}"
            os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
            self.lost = 0
        except BlockingIOError:
            self.lost += 1
        except Exception:  # noqa: BLE001 - like every handler of Python's logging
            self.handleError(record)


class Refusals(logging.Filter):
    """Remove the traceback from Django's log records of 4xx responses: their message is enough."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "status_code", 500) < 500:  # Django's loggers set ``status_code``
            record.exc_info = record.exc_text = None
        return True


class RepeatedLines(logging.Filter):
    """Drop a line that was logged less than a minute ago, and count it.

    The first line after that minute says how often it was dropped. While Redis is away, each
    process would otherwise log the same lines every second. The line of a failed request contains
    its id, so it is never dropped; neither is a line of the access log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lines: dict[tuple[str, int, str], tuple[float, int]] = {}
        """By logger, level and message: when the line was last logged, and how many were dropped
        since then. The line that was logged first is first."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == access.name:
            return True
        line = record.name, record.levelno, record.getMessage()
        now = self._clock()
        logged_at, dropped = self._lines.get(line, (-REPEATED_S, 0))
        if now - logged_at < REPEATED_S:
            self._lines[line] = logged_at, dropped + 1
            return False
        self._lines.pop(line, None)
        self._lines[line] = now, 0
        if len(self._lines) > REPEATED_LINES:
            del self._lines[next(iter(self._lines))]
        if dropped:
            text = f"{line[2]} ({dropped} more times in the last {now - logged_at:.0f} s)"
            record.msg, record.args = text, None
        return True


_nonblocking = False


def set_stderr_nonblocking() -> None:
    """Make stderr nonblocking if it is a pipe, so that a full pipe does not block the server."""
    global _nonblocking  # noqa: PLW0603 - stderr is global too
    try:
        stderr = sys.stderr.fileno()
        if stat.S_ISFIFO(os.fstat(stderr).st_mode):
            os.set_blocking(stderr, False)
            _nonblocking = True
    except (OSError, ValueError, AttributeError):
        pass  # there is no stderr, so writes cannot block


class TextLines(logging.Formatter):
    """Format a record as one text line.

    Append the request id if the message does not contain it.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message as one line. Only the traceback after it may have several lines."""
        line = super().formatMessage(record)
        return CONTROLS.sub(lambda found: repr(found[0])[1:-1], line)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        request = REQUEST.get()
        if request and request not in line:
            head, *trace = line.split("\n", 1)
            line = "\n".join([f"{head} [{request}]", *trace])
        return without_secrets(line)


class JsonLines(logging.Formatter):
    """Format a record as one JSON object a line. Times are in UTC with milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if request := REQUEST.get():
            entry["request_id"] = request
        entry |= getattr(record, "fields", {})  # the fields of an access log line
        if record.exc_info:
            entry["exception"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=True, default=str)
