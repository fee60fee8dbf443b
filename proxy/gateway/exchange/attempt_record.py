"""The ledger's record of one call of an upstream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class AttemptRecord:
    """One call of an upstream, as stored in the ledger."""

    upstream: str
    model: str
    at: float  # start of the call, on the event loop's clock
    reused: bool = False  # whether the connection had been used for an earlier request
    status: int | None = None
    error: str = ""
    sent: bool = False  # whether the upstream may have received the request
    refused: bool = False  # whether the upstream returned an error, so that it generated nothing
    charge: Mapping[str, Any] | None = None
    """The ``usage`` and ``cost_nanousd`` of a failed attempt that are charged to a hard budget."""

    @property
    def may_be_billed(self) -> bool:
        return self.sent and not self.refused

    def as_record(self, now: float) -> dict[str, Any]:
        record = {
            "upstream": self.upstream,
            "model": self.model,
            "status": self.status,
            "error": self.error,
            # Rounds to 0.1 ms; ``round`` would take 1 µs.
            "ms": int((now - self.at) * 10_000 + 0.5) / 10,
        }
        return record if self.charge is None else {**record, **self.charge}
