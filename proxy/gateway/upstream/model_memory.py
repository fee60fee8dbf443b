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

from proxy.gateway.snapshot.targets import UpstreamServer
from proxy.ledger.database.access import check_present
from proxy.models import ModelLesson, Upstream
from proxy.models.setup.lessons import MAX_TEXT, REMEMBERED
from translator.dialect import Lesson, Origin
from translator.notes import Note
from translator.request.body_edits import OMITTING, apply_lessons, capability_of

log = logging.getLogger("proxy.gateway")

MAX_MODELS: Final = 1_024
"""Limited, because clients choose the names of models where a target passes them on."""
MAX_LESSONS: Final = 32  # of one model
REMEMBERED_S: Final = REMEMBERED.total_seconds()


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


def adapt_body(
    body: dict[str, Any], server: UpstreamServer, model: str, origins: Sequence[Origin] = ()
) -> tuple[dict[str, Any], list[Note], tuple[Origin, ...]]:
    """Return a body as its model is known to take it, with notes, and its history's origins."""
    return apply_lessons(body, memory.lessons(server, model), origins)


memory: Final = ModelMemory()
