"""Repair the body of a request that an upstream rejected, and remember what the model lacks.

A repaired request that succeeds shows a capability of the upstream and its model. Later requests
then have the right shape at once. Each process remembers for itself, for an hour: the model behind
a name may change.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import UpstreamServer
from translator.capabilities import Profile
from translator.dialect import Repair
from translator.notes import Note

_encode: Final = msgspec.json.Encoder().encode

MAX_MODELS: Final = 1_024
"""Limited, because clients choose the names of models where a target passes them on."""
REMEMBERED_S: Final = 3_600


class LearnedCapabilities:
    """The capabilities that repairs have shown, by upstream and model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # (upstream, model) -> time of the last repair, capabilities
        self.by_model: dict[tuple[str, str], tuple[float, dict[str, bool]]] = {}

    def learn(self, upstream: str, model: str, capability: tuple[str, bool]) -> None:
        """Remember a capability, as name and value; forget the oldest beyond ``MAX_MODELS``."""
        known = self._known(upstream, model)
        self.by_model.pop((upstream, model), None)
        self.by_model[upstream, model] = self._clock(), known | dict([capability])
        if len(self.by_model) > MAX_MODELS:
            del self.by_model[next(iter(self.by_model))]

    def apply(self, upstream: str, model: str, profile: Profile) -> Profile:
        """Return the profile with what is remembered of this upstream and model."""
        if not self.by_model:
            return profile
        known = self._known(upstream, model)
        return dataclasses.replace(profile, **known) if known else profile  # type: ignore[arg-type]

    def _known(self, upstream: str, model: str) -> dict[str, bool]:
        since, known = self.by_model.get((upstream, model), (0.0, {}))
        return known if known and self._clock() - since < REMEMBERED_S else {}


learned: Final = LearnedCapabilities()


class RequestRepairs:
    """The repairs of one attempt so far."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self._repairs: list[Repair] = []

    def apply(
        self, body: bytes, status: int, refusal: Any, notes: list[Note], *, strict: bool
    ) -> bytes | None:
        """Return the repaired body and add its note; None if the error allows no repair.

        ``refusal``: the decoded error of the upstream. In strict mode no lossy repair is made.
        """
        repair = self._server.dialect.repair(decode_json(body), status, refusal)
        if repair is None or (strict and repair.note.lossy):
            return None
        if repair.note not in notes:
            notes.append(repair.note)
        self._repairs.append(repair)
        return _encode(repair.body)

    def remember(self, model: str) -> None:
        """Remember the capabilities that the repairs have shown, after the upstream answered."""
        for repair in self._repairs:
            if repair.capability is not None:
                learned.learn(self._server.name, model, repair.capability)
