"""Repair the body of a request that an upstream refused, and remember what its model takes."""

from typing import Any, Final

import msgspec

from proxy.gateway.http.body_memory import run_by_size
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import UpstreamServer
from translator.dialect import Origin, Repair
from translator.notes import Note
from translator.request.body_edits import apply_lessons
from translator.request.client_fields import COMPATIBLE_RULES
from translator.request.retry_repairs import repair_by
from translator.upstream_errors.paths import moved_origins

from .model_memory import is_configured, memory

MAX_REPAIRS: Final = 8
"""Each repair changes another part of the request, or lowers a value further. A model that nothing
is known of may refuse several fields, one after the other; all are remembered then."""

repair_client_fields: Final = repair_by(COMPATIBLE_RULES)

_encode: Final = msgspec.json.Encoder().encode


class RequestRepairs:
    """The repairs of one attempt so far."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self._repairs: list[Repair] = []
        # for each request of the history sent to the upstream: its place in the client's request
        self.origins: tuple[Origin, ...] = ()

    @property
    def refused_files(self) -> bool:
        """Whether the last repair has put texts in the places of files."""
        last = self._repairs[-1].lessons if self._repairs else ()
        return any(lesson.edit == "files_as_text" for lesson in last)

    async def apply(
        self, body: bytes, status: int, refusal: Any, notes: list[Note], *, strict: bool
    ) -> bytes | None:
        """Return the repaired body and add its notes; None if the error allows no repair.

        ``refusal``: the decoded error of the upstream. In strict mode no lossy repair is made.
        """
        done = await run_by_size(body, self._repair, body, status, refusal)
        if done is None:
            return None
        repair, origins = done
        if strict and any(note.lossy for note in repair.notes):
            return None
        notes += [note for note in repair.notes if note not in notes]
        self._repairs.append(repair)
        self.origins = origins
        return _encode(repair.body)

    def _repair(
        self, body: bytes, status: int, refusal: Any
    ) -> tuple[Repair, tuple[Origin, ...]] | None:
        """Return the repair, and the origins of the history's entries after it."""
        sent = decode_json(body)
        server = self._server
        is_compatible = server.dialect_name == "anthropic" and server.profile.name != "anthropic"
        repair_body = repair_client_fields if is_compatible else server.dialect.repair
        repair = repair_body(sent, status, refusal)
        if repair is None:
            return None
        if not repair.lessons:
            return repair, moved_origins(sent, repair.body, self.origins)
        # one after the other, because each may move entries
        *_, origins = apply_lessons(sent, repair.lessons, self.origins)
        return repair, origins

    def remember(self, model: str) -> None:
        """Remember what the repairs have shown, after the upstream accepted the last body."""
        for repair in self._repairs:
            for lesson in repair.lessons:
                if not is_configured(self._server, model, lesson):
                    memory.learn(self._server, model, lesson, repair.words)
        self._repairs.clear()
