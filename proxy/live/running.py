"""The requests that run in this process. A request pays one dict entry for being here."""

from typing import Any, Final, Protocol, TypedDict


class Row(TypedDict):
    """One running request, as told to whoever may see it. Never a word of what is said in it."""

    id: str
    age_ms: float
    team: str
    key_id: int | None
    key: str
    user: str
    client: str
    session: str
    agent: str
    model: str  # as the client named it
    upstream: str
    upstream_model: str
    stream: bool
    state: str  # of STATES
    input_tokens: int | None
    output_tokens: int
    estimated: bool  # whether both are our estimates
    attempts: int
    first_ms: float | None  # until the first content


STATES: Final = {
    "arriving": "arriving",
    "admitted": "at the door",
    "waiting": "waiting for the upstream",
    "thinking": "thinking",
    "answering": "answering",
    "calling": "calling a tool",
    "stopping": "stopping",
}
"""What a running request is at, and how it is called on the page."""


class Running(Protocol):
    """A request as the registry knows it."""

    def glance(self) -> Row:
        """How it stands now; from any thread."""
        ...

    def stop_by(self, who: str) -> None:
        """End it soon; from any thread. Whatever has ended already stays as it is."""
        ...


RUNNING: Final[dict[str, Running]] = {}
"""By request id, oldest first. The event loop alone changes it."""


def glances() -> list[Row]:
    """All that run here, oldest first."""
    return [one.glance() for one in list(RUNNING.values())]


def stop_here(request_id: str, who: str) -> bool:
    """Stop a request of this process. False: it does not run here."""
    one = RUNNING.get(request_id)
    if one is None:
        return False
    one.stop_by(who)
    return True


def seen_by(row: Row) -> dict[str, Any]:
    """The columns that ``proxy.visibility`` judges a row by."""
    return {"team": row["team"], "key_id": row["key_id"], "user": row["user"]}
