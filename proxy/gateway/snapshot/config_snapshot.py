"""The configuration in memory: keys, routes, upstreams, prices, budgets and policies.

There is one immutable ``Snapshot`` at a time. A thread reads the ``Revision`` row from the database
each second and loads a new snapshot if the revision has changed. A request needs only dict lookups.
If the database is unreachable, the last valid snapshot stays in use. At the start it is loaded from
the file of ``config_cache``.
"""

import contextlib
import dataclasses
import fnmatch
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, connection

from proxy.gateway.credentials.registry import CREDENTIALS
from proxy.ledger.database import access
from proxy.ledger.database.access import database_file
from proxy.ledger.usage.pricing import PriceList
from proxy.metrics.definitions import SECRET_FILE_CHANGES
from proxy.models import (
    ApiKey,
    Budget,
    Pause,
    Price,
    Revision,
    Route,
    RouteTarget,
    Team,
    Upstream,
    UpstreamPolicy,
)
from proxy.models.encrypted_text import MISSING
from proxy.models.setup.columns import matches_any
from proxy.models.setup.config_row_validation import SKIPPED, UnreadableRow
from proxy.models.setup.upstreams import secret_files
from proxy.permissions.key_validity import End, ends_of
from proxy.secrets import SECRET_FILES, ConfigError, reasoning_signing_keys
from translator.errors import TranslatorError
from translator.stream.reasoning_signature import SigningKeys

from . import config_cache, revoked_keys_file
from .budget_snapshot import BudgetConfig, Budgets
from .config_cache import Configuration
from .pauses import PauseEntry
from .server_builder import build_server, message_rules
from .targets import Target, UpstreamServer
from .upstream_policies import NO_POLICIES, Policies, build_policies

log = logging.getLogger("proxy.gateway")

POLL_S: Final = 1.0
MAX_CACHED_ROUTES: Final = 4_096  # the number is limited, because clients choose the model names


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The rate limits of one key or team. None means no limit."""

    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Limits":
        sizes = {name: size for name, size in stored.items() if name != "models"}
        return cls(**sizes) if sizes else NO_LIMITS


class ModelLimits(NamedTuple):
    """The limits of all requests of one key or team for the models that match a name or glob."""

    pattern: str
    limits: Limits

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "tuple[ModelLimits, ...]":
        """Return the limits by model of a key's or team's stored limits."""
        by_model = stored.get("models", {})
        return tuple(cls(pattern, Limits(**sizes)) for pattern, sizes in by_model.items())


NO_LIMITS: Final = Limits()
"""The only instance without limits, so that it can be compared by ``is`` (faster than ``==``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamEntry:
    name: str
    store_full: bool
    models: "ModelAllowList"
    limits: Limits
    model_limits: tuple[ModelLimits, ...] = ()
    id: int = 0
    ledger_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A gateway key with all settings that apply to its requests."""

    key_id: int
    key_name: str
    meter: str
    """Whose rate limits apply, such as ``platform/ci``: of a rotated key, its successor."""
    team: TeamEntry
    user: str
    person_id: str = ""
    """The user in the ledger; empty if the key belongs to the team as a whole."""
    scopes: frozenset[str]
    models: "ModelAllowList"
    limits: Limits
    ip_allow: tuple[str, ...]
    strict: bool
    events: frozenset[str]
    ends: tuple[End, ...] = ()
    budgets: tuple[BudgetConfig, ...] = ()  # the budgets of the key, its team and its user
    model_limits: tuple[ModelLimits, ...] = ()
    meter_id: int = 0
    """The id of the key that ``meter`` names, by which its rate limits are counted."""


@dataclass(frozen=True, slots=True)
class ModelAllowList:
    """The model names and globs that are allowed. An empty list allows every model."""

    names: tuple[str, ...] = ()

    def allow(self, model: str) -> bool:
        return not self.names or matches_any(model, self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntry:
    """One route. ``weights`` has one item for each target, in the same order."""

    model: str
    team: str | None
    pattern: re.Pattern[str] | None  # None: ``model`` is an exact name
    targets: tuple[Target, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The configuration of one revision. It is immutable except for ``route_cache``."""

    revision: int = -1
    keys: Mapping[bytes, Caller] = field(default_factory=dict)
    exact: Mapping[tuple[str | None, str], RouteEntry] = field(default_factory=dict)
    globs: tuple[RouteEntry, ...] = ()
    prices: PriceList = field(default_factory=lambda: PriceList(()))
    content_rules: Policies = NO_POLICIES  # which blocks and roles of messages may pass
    pauses: tuple[PauseEntry, ...] = ()
    team_budgets: Mapping[str, tuple[BudgetConfig, ...]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    """The upstreams that cannot be used, with the reason, such as a missing secret."""
    secret_files: Mapping[str, str] = field(default_factory=dict)
    """The path of the secret file of each upstream that has one, by upstream."""
    unreadable: Sequence[UnreadableRow] = ()
    """Configuration rows that are excluded because they have invalid values."""
    missing_body_keys: Sequence[str] = ()
    """The ids of the body keys that encrypted stored data, but are not configured."""
    route_cache: dict[tuple[str, str], RouteEntry | None] = field(default_factory=dict)

    def route(self, team: str, model: str) -> RouteEntry | None:
        """Return the route for a team's requests to a model.

        Exact names precede globs, then routes of the team precede general ones, then by position.
        """
        key = (team, model)
        if key in self.route_cache:
            return self.route_cache[key]
        if len(self.route_cache) >= MAX_CACHED_ROUTES:
            self.route_cache.clear()
        found = self.exact.get(key) or self.exact.get((None, model)) or self._glob(team, model)
        self.route_cache[key] = found
        return found

    def _glob(self, team: str, model: str) -> RouteEntry | None:
        for owner in (team, None):
            for route in self.globs:
                if route.team == owner and route.pattern and route.pattern.match(model):
                    return route
        return None

    def models(self, caller: Caller) -> list[RouteEntry]:
        """Return the routes that this caller may use, each model name once."""
        own = {route.model: route for route in [*self.exact.values(), *self.globs]
               if route.team in (None, caller.team.name)}  # fmt: skip
        return [
            route
            for name, route in own.items()
            if caller.models.allow(name) and caller.team.models.allow(name)
        ]


class ConfigStore:
    """Stores the current snapshot and reloads it when the configuration changes."""

    def __init__(
        self,
        load: "Callable[[], Snapshot] | None" = None,
        *,
        start_wait_s: float = 10.0,
        stop_wait_s: float = 5.0,
    ) -> None:
        self.snapshot = Snapshot()
        self.fresh = False  # whether the last poll of the database succeeded
        self.fault = ""
        self.listeners: list[Callable[[Snapshot], None]] = []
        """Functions that the polling thread calls with each new snapshot."""
        self.tasks: list[Callable[[], None]] = []
        """Functions that the polling thread calls after each poll. They must not raise."""
        self._load = load or load_snapshot
        self._start_wait_s, self._stop_wait_s = start_wait_s, stop_wait_s  # the database may hang
        self._reload_due = False  # whether the snapshot is from the file, or a secret has changed
        self._transitions = SECRET_FILES.read_all(())  # how often files changed or failed
        self._lock = threading.Lock()
        self.poll_lock = threading.Lock()  # a slow poll must not replace a newer snapshot
        self.thread: threading.Thread | None = None
        self._stop_event = threading.Event()

    @property
    def running(self) -> bool:
        return self.thread is not None

    def start(self) -> None:
        """Start the polling thread, unless it runs, and wait for the first load."""
        with self._lock:
            if self.running:
                return
            self._stop_event.clear()
            loaded = threading.Event()
            self.thread = threading.Thread(
                target=self._run, args=(loaded,), name="directory", daemon=True
            )
            self.thread.start()
        loaded.wait(self._start_wait_s)

    def stop(self) -> None:
        with self._lock:
            thread, self.thread = self.thread, None
        if thread is not None:
            self._stop_event.set()
            thread.join(self._stop_wait_s)
            self.snapshot, self.fresh, self._reload_due = Snapshot(), False, False
            CREDENTIALS.keep(())

    def _run(self, loaded: threading.Event) -> None:
        while True:
            self.poll()
            for task in self.tasks:
                task()
            loaded.set()
            if self._stop_event.wait(POLL_S):
                break
        connection.close()

    def poll(self) -> None:
        """Load a new snapshot if the revision has changed. On any error, keep the old one."""
        with self.poll_lock:
            self._poll_locked()

    def _poll_locked(self) -> None:
        transitions = SECRET_FILES.read_all(self.snapshot.secret_files.values())
        new_transitions = transitions - self._transitions
        for transition, times in new_transitions.items():
            SECRET_FILE_CHANGES.labels(transition).inc(times)
        self._transitions = transitions
        self._reload_due = self._reload_due or bool(new_transitions)
        try:
            access.renew()
            database_file()
            if self._reload_due or Revision.current() != self.snapshot.revision:
                self._publish(self._load())
                self._reload_due = False
            self.fresh, self.fault = True, ""
        except Exception as exc:  # noqa: BLE001 - no database error may end the polling thread
            never_loaded = not self.fresh and self.snapshot.revision < 0
            if self.fresh or not self.fault:
                log.warning("the directory cannot be read: %s", exc)
            self.fresh, self.fault = False, type(exc).__name__
            with contextlib.suppress(DatabaseError):
                connection.close()  # the next poll opens a new one
            if (never_loaded or new_transitions) and (cached := config_cache.load_cached()):
                log.warning("keys and routes are those that were last read")
                self._reload_due = True
                self._publish(build_snapshot(cached))

    def _publish(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        SKIPPED.update(snapshot.unreadable)
        MISSING.ids = snapshot.missing_body_keys
        for listener in self.listeners:
            listener(snapshot)


def load_snapshot() -> Snapshot:
    """Read the configuration from the database, and save it to the file for a later start."""
    configuration = config_cache.read_database()
    revoked_keys_file.update(configuration.keys)
    config_cache.save_cached(configuration)
    return build_snapshot(configuration)


def build_snapshot(configuration: Configuration) -> Snapshot:
    ring = reasoning_signing_keys()
    rules = configuration.rows_of(UpstreamPolicy)
    servers: dict[int, UpstreamServer] = {}
    broken: dict[str, str] = {}
    for upstream in configuration.rows_of(Upstream):
        if not upstream.enabled:
            continue
        try:
            servers[upstream.pk] = build_server(upstream, rules)
        except (ConfigError, TranslatorError, KeyError, ValueError) as exc:
            broken[upstream.name] = str(exc)
            log.warning("upstream %s cannot be used: %s", upstream.name, exc)
    CREDENTIALS.keep({server.name for server in servers.values()})
    targets = defaultdict(list)
    for target in configuration.rows_of(RouteTarget):
        targets[target.route_id].append(target)
    routes = [
        _build_route(route, targets[route.pk], servers, ring)
        for route in configuration.rows_of(Route)
    ]
    teams = {team.pk: _build_team(team) for team in configuration.rows_of(Team)}
    budgets = Budgets.from_rows(configuration.rows_of(Budget))
    return Snapshot(
        revision=configuration.revision,
        keys={
            stored["digest"]: _build_caller(key, teams[key.team_id], budgets, configuration)
            for key in configuration.rows_of(ApiKey)
            if (stored := key.stored_secret)
        },
        exact={(route.team, route.model): route for route in routes if route.pattern is None},
        globs=tuple(route for route in routes if route.pattern is not None),
        prices=PriceList(configuration.rows_of(Price)),
        content_rules=build_policies(rule.as_rule() for rule in message_rules(rules)),
        pauses=tuple(map(PauseEntry.of, configuration.rows_of(Pause))),
        team_budgets={
            team.name: budgets.by_owner.get(("team", pk), ()) for pk, team in teams.items()
        },
        broken=broken,
        secret_files=secret_files(configuration.rows_of(Upstream)),
        unreadable=configuration.unreadable,
        missing_body_keys=configuration.missing_body_keys,
    )


def _build_route(
    route: Route,
    targets: Iterable[RouteTarget],
    servers: Mapping[int, UpstreamServer],
    ring: SigningKeys,
) -> RouteEntry:
    usable = [each for each in targets if each.upstream_id in servers]
    is_glob = any(sign in route.model for sign in "*?[")
    return RouteEntry(
        model=route.model,
        team=route.team.name if route.team else None,
        pattern=re.compile(fnmatch.translate(route.model)) if is_glob else None,
        targets=tuple(
            Target.of(servers[each.upstream_id], each.model, each.when, ring) for each in usable
        ),
        weights=tuple(each.weight for each in usable),
    )


def _build_team(team: Team) -> TeamEntry:
    return TeamEntry(
        name=team.name,
        store_full=team.store == "full",
        models=ModelAllowList(tuple(team.models_allowed)),
        limits=Limits.of(team.limits),
        model_limits=ModelLimits.of(team.limits),
        id=team.pk,
        ledger_id=team.ledger_id,
    )


def _build_caller(
    key: ApiKey, team: TeamEntry, budgets: Budgets, configuration: Configuration
) -> Caller:
    keys = (key, key.successor) if key.successor else (key,)
    if any(one.metadata_only for one in keys):
        team = dataclasses.replace(team, store_full=False)
    return Caller(
        key_id=key.pk,
        key_name=key.name,
        meter=f"{team.name}/{keys[-1].name}",
        team=team,
        user=key.user.get_username() if key.user else "",
        person_id=configuration.persons[key.user.pk] if key.user else "",
        scopes=frozenset(key.scopes),
        models=ModelAllowList(tuple(key.models_allowed)),
        limits=Limits.of(keys[-1].limits),  # a rotated key has the limits of its successor
        ip_allow=tuple(key.ip_allow),
        strict=bool(key.options.get("strict")),
        events=frozenset(key.options.get("events", ())),
        ends=ends_of(key),
        budgets=budgets.for_key(key),
        model_limits=ModelLimits.of(keys[-1].limits),
        meter_id=keys[-1].pk,
    )


directory = ConfigStore()
