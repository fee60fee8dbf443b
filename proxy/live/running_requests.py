"""The registry of the requests that run in this process: one dict entry for each request."""

import time
from typing import Any, Final, NamedTuple, Protocol, TypedDict


class LiveRow(TypedDict):
    """One running request as the live view shows it, without any conversation text."""

    id: str
    age_ms: float
    team: str  # its name
    team_id: str  # Team.ledger_id
    key_id: int | None
    key: str
    user: str  # the user's name
    user_id: str  # Person.pk; empty: a key of the team
    client: str
    session: str
    agent: str
    model: str  # the model name in the client's request
    upstream: str
    upstream_model: str
    stream: bool
    speed: str  # as reported, else as asked for
    inference_geo: str
    state: str  # a key of ``STATES``
    input_tokens: int | None
    output_tokens: int
    estimated: bool  # whether both token counts are estimates
    attempts: int
    first_ms: float | None  # milliseconds until the first content of the response


STATES: Final = {
    "arriving": "arriving",
    "admitted": "admitted",
    "waiting": "waiting for the upstream",
    "thinking": "thinking",
    "answering": "answering",
    "calling": "calling a tool",
    "stopping": "stopping",
}
"""The states of a running request, with their labels on the live page."""


class RunningRequest(Protocol):
    """The interface of a running request that the registry uses."""

    def live_row(self) -> LiveRow:
        """Return the current state of the request. Thread-safe."""
        ...

    def stop_by(self, who: str) -> None:
        """Stop the request soon; its note names ``who``, which is not a user's name.

        Thread-safe. No effect if it has ended.
        """
        ...


ADMINISTRATOR: Final = "an administrator"
"""Who stopped a request, in its note. Only the audit log has the name: a note of another person's
request would keep it after ``eraseuser``."""

RUNNING: Final[dict[str, RunningRequest]] = {}
"""The running requests by id, oldest first. Only code on the event loop changes the dict."""


def running_rows() -> list[LiveRow]:
    """Return a row for each running request of this process, oldest first."""
    return [request.live_row() for request in list(RUNNING.values())]


def stop_here(request_id: str, who: str) -> bool:
    """Stop a request; its note names ``who``.

    Return False if the request does not run in this process.
    """
    request = RUNNING.get(request_id)
    if request is None:
        return False
    request.stop_by(who)
    return True


class StopOrder(NamedTuple):
    """An order to stop the running requests whose live row has ``value`` in ``column``."""

    column: str  # a column of ``LiveRow``
    value: str | int
    who: str
    until: float = 0.0
    """When the shared store drops the order, in Unix seconds."""
    given: float = 0.0
    """When the order was given, in Unix seconds. An order of a column stops no later request."""


def stop_selected(order: StopOrder) -> None:
    """Stop the requests of this process that the order selects.

    A process reads an order some time after it was given, so later requests may already run.
    """
    if order.column == "id":
        stop_here(str(order.value), order.who)
        return
    now = time.time()
    for request in list(RUNNING.values()):
        row = request.live_row()
        started = now - row["age_ms"] / 1000
        if dict(row)[order.column] == order.value and started <= order.given:
            request.stop_by(order.who)


def seen_by(row: LiveRow) -> dict[str, Any]:
    """Return the columns of the row that decide who may see it, for ``proxy.permissions``."""
    return {"team": row["team_id"], "key_id": row["key_id"], "user": row["user_id"]}
