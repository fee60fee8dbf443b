"""What the logs look like: text lines or JSON lines, each with its request, none with a secret."""

import json
import logging
import os
import re
import stat
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

REQUEST: Final[ContextVar[str]] = ContextVar("request", default="")
"""The id of the request that is being served, wherever its code logs."""

access: Final = logging.getLogger("proxy.access")

HIDDEN: Final = "[hidden]"

CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What would begin another line, colour a terminal or turn text round (T50)."""


def without_secrets(text: str) -> str:
    """Nothing of ours logs a credential; but the text of a foreign exception may hold one."""
    from translator.secret_redaction import without_secrets as redact  # noqa: PLC0415 - 45 ms

    return redact(text, HIDDEN)


class Lines(logging.StreamHandler[Any]):
    """Writes to stderr. A pipe that is full costs the line, never the one who logs (P11)."""

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not _never_waits:
            super().emit(record)
            return
        try:
            line = self.format(record) + "\n"
            if self.lost:
                line = f"{self.lost} lines of the log were lost: nobody read them\n{line}"
            os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
            self.lost = 0
        except BlockingIOError:
            self.lost += 1
        except Exception:  # noqa: BLE001 - logging's own way with faults of a handler
            self.handleError(record)


class Refusals(logging.Filter):
    """Keeps the traceback off a page that was refused: its message says what refused it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "status_code", 500) < 500:  # Django's own loggers name the status
            record.exc_info = record.exc_text = None
        return True


_never_waits = False


def never_wait() -> None:
    """For the server: from here on no full pipe holds it up."""
    global _never_waits  # noqa: PLW0603 - one stderr, one switch
    try:
        stderr = sys.stderr.fileno()
        if stat.S_ISFIFO(os.fstat(stderr).st_mode):
            os.set_blocking(stderr, False)
            _never_waits = True
    except (OSError, ValueError, AttributeError):
        pass  # there is no stderr: nothing can block


class TextLines(logging.Formatter):
    """For people: one line, its request at the end where the line does not name it itself."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line itself; only a traceback, which follows it, has lines of its own."""
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
    """For machines: one JSON object a line. Times are UTC with milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if request := REQUEST.get():
            told["request_id"] = request
        told |= getattr(record, "fields", {})  # of the access line: values that we chose
        if record.exc_info:
            told["exception"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(told, ensure_ascii=True, default=str)
