"""Sum the stop reasons of a UTC day by caller, client version, model and called tool."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from proxy.ledger.database.bulk_sql import write
from proxy.models import StopReasonDay

from .exchange_columns import AnyRow

MAX_TOOLS: Final = 50  # different tools of one answer that are counted
MAX_NAME: Final = 200  # characters of a tool's name
COLUMNS: Final = (
    "team", "key_id", "user", "client_name", "client_version", "model_requested", "stop_reason",
)  # fmt: skip
"""The dimensions that are columns of a ledger row; the other one is the tool."""
COUNTS: Final = ("requests", "requests_with_tool")
_canonical = msgspec.json.Encoder().encode

Group = tuple[Any, ...]  # start of the day, values of COLUMNS, tool


def tools_of(tool_names: object) -> list[str]:
    """Return the names of the tools that an answer calls, each once; [""] if it calls none.

    ``tool_names``: the column of the ledger row.
    """
    names = tool_names if isinstance(tool_names, list) else []
    return sorted({str(name)[:MAX_NAME] for name in names[:MAX_TOOLS]}) or [""]


def add(rows: Iterable[AnyRow], sign: int = 1) -> None:
    """Add closed ledger rows; ``sign=-1`` subtracts them before they are amended."""
    write(StopReasonDay, lines_of(rows, sign), added=COUNTS)


def lines_of(rows: Iterable[AnyRow], sign: int = 1) -> list[dict[str, Any]]:
    """Return what closed ledger rows add to the table.

    A request counts once in ``requests``, at its first tool, and in ``requests_with_tool`` at each
    tool. So the sum of ``requests`` over all groups is the number of rows.
    """
    counts: dict[Group, list[int]] = {}
    for row in rows:
        start = row.created.replace(hour=0, minute=0, second=0, microsecond=0)
        group = (start, *(getattr(row, name) for name in COLUMNS))
        for place, tool in enumerate(tools_of(row.tool_names)):
            sums = counts.setdefault((*group, tool), [0, 0])
            sums[0] += sign * (place == 0)
            sums[1] += sign
    return [
        {
            "id": key_of_group(group),
            "start": group[0],
            **dict(zip((*COLUMNS, "tool"), group[1:], strict=True)),
            **dict(zip(COUNTS, sums, strict=True)),
        }
        for group, sums in counts.items()
    ]


def key_of_group(group: Group) -> bytes:
    """Return the primary key of the row for a day, the values of ``COLUMNS`` and a tool."""
    values = [group[0].isoformat(), *group[1:]]
    return hashlib.sha256(_canonical(values)).digest()[:16]
