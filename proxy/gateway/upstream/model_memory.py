"""What upstreams' refusals have shown about their models: in memory, and for all processes.

Requests read this memory of their process. Its lasting place is the small table ``ModelLesson``,
which the thread that polls the configuration reads and writes each second: an admin's reset reaches
all processes that way, a restart forgets nothing, and no request waits for the database. A lesson
is forgotten after a day, because the model behind a name may change, and whenever the settings of
its upstream change.

Only what a repaired and then successful request has shown is learnt, and only from the upstream's
code, path or own words (``upstream_errors.refusal``), so that no caller can teach the gateway
anything about the requests of others.
"""

import datetime as dt
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.http.request_body import run_by_size
from proxy.gateway.snapshot.targets import UpstreamServer
from proxy.ledger.database.access import check_present
from proxy.models import ModelLesson, Upstream
from proxy.models.setup.lessons import MAX_TEXT, REMEMBERED
from translator.dialect import Lesson, Origin, Repair
from translator.notes import Note
from translator.request.body_edits import OMITTING, apply_lessons, capability_of
from translator.request.retry_repairs import COMPATIBLE_RULES, repair_by
from translator.upstream_errors.paths import moved_origins

log = logging.getLogger("proxy.gateway")

MAX_MODELS: Final = 1_024
"""Limited, because clients choose the names of models where a target passes them on."""
MAX_LESSONS: Final = 32  # of one model
REMEMBERED_S: Final = REMEMBERED.total_seconds()
MAX_REPAIRS: Final = 8
"""Each repair changes another part of the request, or lowers a value further. A model that nothing
is known of may refuse several fields, one after the other; all are remembered then."""
repair_client_fields: Final = repair_by(COMPATIBLE_RULES)
_encode: Final = msgspec.json.Encoder().encode


class Learned(NamedTuple):
    lesson: Lesson
    words: str
    since: float  # Unix time


Key = tuple[int, str, str]
"""The id and the name of an upstream, and the name of a model."""


class ModelMemory:
    """The lessons by upstream and model, in the order in which they were learnt."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.by_model: dict[Key, tuple[Learned, ...]] = {}
        self._unwritten: dict[tuple[Key, Lesson], Learned] = {}
        self._lock = threading.Lock()
        self._read_state: Any = None  # of the table, when it was last read
        self._is_failing = False

    def lessons(self, server: UpstreamServer, model: str) -> Sequence[Lesson]:
        """Return what is known of a model; a capability that is configured has precedence."""
        if not self.by_model:
            return ()
        oldest = self._clock() - REMEMBERED_S
        known = self.by_model.get(_key(server, model), ())
        return [
            each.lesson
            for each in known
            if each.since > oldest and not is_configured(server, model, each.lesson)
        ]

    def learn(self, server: UpstreamServer, model: str, lesson: Lesson, words: str) -> None:
        """Remember a lesson; forget the model that was learnt first beyond ``MAX_MODELS``."""
        key = _key(server, model)
        learned = Learned(lesson, words[:MAX_TEXT], self._clock())
        with self._lock:
            known = tuple(each for each in self.by_model.get(key, ()) if each.lesson != lesson)
            self.by_model[key] = (*known, learned)[-MAX_LESSONS:]
            if len(self.by_model) > MAX_MODELS:
                del self.by_model[next(iter(self.by_model))]
            if server.row_id and max(len(model), len(lesson.value)) <= MAX_TEXT:
                self._unwritten[key, lesson] = learned
                while len(self._unwritten) > MAX_MODELS:
                    del self._unwritten[next(iter(self._unwritten))]

    def synchronize(self) -> None:
        """Write what is new to the table, and read the table if it has changed. Never raises.

        The table has at most ``MAX_MODELS`` rows: the oldest are deleted.
        """
        try:
            check_present()
            self._write()
            self._read()
            self._is_failing = False
        except Exception as exc:  # noqa: BLE001 - no error may end the polling thread
            if not self._is_failing:
                log.warning("what models take is kept in memory until it can be written: %s", exc)
            self._is_failing = True

    def _write(self) -> None:
        with self._lock:
            unwritten = dict(self._unwritten)
        if not unwritten:
            return
        present = {*Upstream.objects.values_list("pk", flat=True)}
        for (key, lesson), learned in unwritten.items():
            row_id, _, model = key
            if row_id in present:
                row = {"upstream_id": row_id, "model": model, **lesson._asdict()}
                # A new row also for a lesson that is learnt again: readers look at the last id.
                ModelLesson.objects.filter(**row).delete()
                since = dt.datetime.fromtimestamp(learned.since, dt.UTC)
                ModelLesson.objects.create(**row, words=learned.words, since=since)
        expired = dt.datetime.fromtimestamp(self._clock() - REMEMBERED_S, dt.UTC)
        ModelLesson.objects.filter(since__lte=expired).delete()
        surplus = ModelLesson.objects.order_by("-pk").values_list("pk", flat=True)[MAX_MODELS:]
        ModelLesson.objects.filter(pk__in=[*surplus]).delete()
        with self._lock:
            for name, learned in unwritten.items():
                if self._unwritten.get(name) is learned:
                    del self._unwritten[name]

    def _read(self) -> None:
        ids = ModelLesson.objects.order_by("-pk").values_list("pk", flat=True)
        state = tuple(ids[:1]), ids.count()
        if state == self._read_state:
            return
        by_model: dict[Key, tuple[Learned, ...]] = defaultdict(tuple)
        for row in ModelLesson.objects.select_related("upstream").order_by("pk")[:MAX_MODELS]:
            learned = Learned(Lesson(row.edit, row.value), row.words, row.since.timestamp())
            by_model[row.upstream_id, row.upstream.name, row.model] += (learned,)
        with self._lock:
            for (key, lesson), learned in self._unwritten.items():
                others = tuple(one for one in by_model[key] if one.lesson != lesson)
                by_model[key] = (*others, learned)
            self.by_model = dict(by_model)
            self._read_state = state


def _key(server: UpstreamServer, model: str) -> Key:
    return server.row_id, server.name, model


def is_configured(server: UpstreamServer, model: str, lesson: Lesson) -> bool:
    """Return whether the operator has decided what the lesson is about."""
    if (
        lesson.edit in OMITTING
        and lesson.value.split(".")[0].removesuffix("[]") in server.extra_body
    ):
        return True
    capability = capability_of(lesson)
    return bool(capability) and capability in server.capabilities_for(model)


memory: Final = ModelMemory()


class RequestRepairs:
    """The repairs of one attempt so far."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self._repairs: list[Repair] = []
        # for each entry of the history sent to the upstream: its place in the client's request
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
