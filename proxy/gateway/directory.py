"""Who may call and where requests go: the database's answer, kept in memory.

One immutable ``Snapshot`` at a time; a thread asks the database each second whether its
``Revision`` has risen and then loads a new one. The hot path does dict lookups only, and goes on
with the last good snapshot when the database is away: its own, or that of an earlier start.
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
from typing import Any, Final

from django.db import DatabaseError, connection

from proxy.key_validity import End, ends_of
from proxy.metrics import catalogue as c
from proxy.models import (
    ApiKey,
    Budget,
    Leaving,
    Price,
    Revision,
    Route,
    RouteTarget,
    Team,
    Upstream,
    UpstreamPolicy,
)
from proxy.record import database_credentials
from proxy.record.database import present
from proxy.record.pricing import PriceList
from proxy.secrets import SECRET_FILES, ConfigError, carrier_keys
from proxy.soundness import SEEN, Unread
from translator.carrier import CarrierKeys
from translator.dialect import Dialect
from translator.errors import TranslatorError
from translator.profiles import Profile, profile_with

from . import configuration, revocations
from .ceilings import BudgetEntry, Budgets
from .configuration import Configuration
from .dialects import DIALECTS
from .policies import IN_MESSAGES, Policies, policies_of
from .policies import NONE as NO_POLICIES
from .reporting import metrics
from .targets import Server, Target, Timeouts

log = logging.getLogger("proxy.gateway")

POLL_S: Final = 1.0
START_WAIT_S: Final = 10.0  # for the first look; a database may hang
STOP_WAIT_S: Final = 5.0
CHOICES_KEPT: Final = 4_096  # clients may ask for any name; their number must not fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings in one process; None: no ceiling."""

    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Limits":
        return cls(**stored) if stored else NO_LIMITS


NO_LIMITS: Final = Limits()
"""The one that every request looks for: ``is`` where ``==`` would be a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamEntry:
    name: str
    store_full: bool
    models: "Globs"
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A gateway key and all that is decided by it."""

    key_id: int
    key_name: str
    meter: str
    """Under which its limits count: ``platform/ci``; an old secret counts with the new one."""
    team: TeamEntry
    user: str
    scopes: frozenset[str]
    models: "Globs"
    limits: Limits
    ip_allow: tuple[str, ...]
    strict: bool
    events: frozenset[str]
    ends: tuple[End, ...] = ()
    budgets: tuple[BudgetEntry, ...] = ()  # of the key, its team and its user


@dataclass(frozen=True, slots=True)
class Globs:
    """Model names and globs; none at all allows every model."""

    names: tuple[str, ...] = ()

    def allow(self, model: str) -> bool:
        return not self.names or any(fnmatch.fnmatchcase(model, name) for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntry:
    """One route; ``targets`` in their order, ``weights`` beside them."""

    model: str
    team: str | None
    pattern: re.Pattern[str] | None  # None: an exact name
    targets: tuple[Target, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything at one revision. Only ``choices`` grows: a memory of what was looked up."""

    revision: int = -1
    keys: Mapping[bytes, Caller] = field(default_factory=dict)
    exact: Mapping[tuple[str | None, str], RouteEntry] = field(default_factory=dict)
    globs: tuple[RouteEntry, ...] = ()
    prices: PriceList = field(default_factory=lambda: PriceList(()))
    admitted: Policies = NO_POLICIES  # blocks and roles that we do not know, and a rule is for
    broken: Mapping[str, str] = field(default_factory=dict)
    """Upstreams that cannot be used, and why (a missing secret, an unknown capability)."""
    secret_files: Mapping[str, str] = field(default_factory=dict)
    """Upstreams whose secret is in a file, and its path."""
    unread: Sequence[Unread] = ()
    """Rows that are left out, since nobody can read them."""
    choices: dict[tuple[str, str], RouteEntry | None] = field(default_factory=dict)

    def route(self, team: str, model: str) -> RouteEntry | None:
        """Exact names before globs, a team's own before everybody's, then by position."""
        asked = (team, model)
        if asked in self.choices:
            return self.choices[asked]
        if len(self.choices) >= CHOICES_KEPT:
            self.choices.clear()
        found = self.exact.get(asked) or self.exact.get((None, model)) or self._glob(team, model)
        self.choices[asked] = found
        return found

    def _glob(self, team: str, model: str) -> RouteEntry | None:
        for owner in (team, None):
            for route in self.globs:
                if route.team == owner and route.pattern and route.pattern.match(model):
                    return route
        return None

    def models(self, caller: Caller) -> list[RouteEntry]:
        """The routes that this caller may use, each name once."""
        own = {route.model: route for route in [*self.exact.values(), *self.globs]
               if route.team in (None, caller.team.name)}  # fmt: skip
        return [
            route
            for name, route in own.items()
            if caller.models.allow(name) and caller.team.models.allow(name)
        ]


class Directory:
    """Holds the current snapshot and keeps it fresh."""

    def __init__(self, load: "Callable[[], Snapshot] | None" = None) -> None:
        self.snapshot = Snapshot()
        self.fresh = False  # the last look at the database succeeded
        self.fault = ""
        self.listeners: list[Callable[[Snapshot], None]] = []
        """Told of each new snapshot, in the poller's thread."""
        self._load = load or load_snapshot
        self._recalled = False  # the snapshot is that of an earlier start, or a secret is older
        self._transitions = SECRET_FILES.look(())  # of files of secrets
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # who looked first may not be the last to tell
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Load, and keep on polling; again is fine. Blocks for the first load only."""
        with self._lock:
            if self.running:
                return
            self._ending.clear()
            loaded = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(loaded,), name="directory", daemon=True
            )
            self._thread.start()
        loaded.wait(START_WAIT_S)

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(STOP_WAIT_S)
            self.snapshot, self.fresh, self._recalled = Snapshot(), False, False

    def _run(self, loaded: threading.Event) -> None:
        while True:
            self.look()
            loaded.set()
            if self._ending.wait(POLL_S):
                break
        connection.close()

    def look(self) -> None:
        """Load a new snapshot if the revision has risen; keep the old one on any failure."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        transitions = SECRET_FILES.look(self.snapshot.secret_files.values())
        newer = transitions - self._transitions
        for transition, times in newer.items():
            metrics.add(c.SECRET_FILES, (transition,), times)
        self._transitions = transitions
        self._recalled = self._recalled or bool(newer)
        try:
            database_credentials.renew()
            present()
            if self._recalled or Revision.current() != self.snapshot.revision:
                self._tell(self._load())
                self._recalled = False
            self.fresh, self.fault = True, ""
        except Exception as exc:  # noqa: BLE001 - a poller must outlive every fault of a database
            never_looked = not self.fresh and self.snapshot.revision < 0
            if self.fresh or not self.fault:
                log.warning("the directory cannot be read: %s", exc)
            self.fresh, self.fault = False, type(exc).__name__
            with contextlib.suppress(DatabaseError):
                connection.close()  # the next look opens a new one
            if (never_looked or newer) and (kept := configuration.recall()):
                log.warning("keys and routes are those that were last seen")
                self._recalled = True
                self._tell(snapshot_of(kept))

    def _tell(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        SEEN.tell(snapshot.unread)
        for told in self.listeners:
            told(snapshot)


def load_snapshot() -> Snapshot:
    """Read everything the gateway decides by, and keep it for a start without the database."""
    read = configuration.read()
    revocations.keep(read.keys)
    configuration.keep(read)
    return snapshot_of(read)


def snapshot_of(read: Configuration) -> Snapshot:
    ring = carrier_keys()
    rules = read.of(UpstreamPolicy)
    servers: dict[int, Server] = {}
    broken: dict[str, str] = {}
    for upstream in read.of(Upstream):
        if not upstream.enabled:
            continue
        try:
            servers[upstream.pk] = server_of(upstream, rules)
        except (ConfigError, TranslatorError, KeyError, ValueError) as exc:
            broken[upstream.name] = str(exc)
            log.warning("upstream %s cannot be used: %s", upstream.name, exc)
    targets = defaultdict(list)
    for target in read.of(RouteTarget):
        targets[target.route_id].append(target)
    routes = [_route(route, targets[route.pk], servers, ring) for route in read.of(Route)]
    teams = {team.pk: _team(team) for team in read.of(Team)}
    budgets = Budgets.over(read.of(Budget))
    return Snapshot(
        revision=read.revision,
        keys={
            stored["digest"]: _caller(key, teams[key.team_id], budgets)
            for key in read.of(ApiKey)
            if (stored := key.stored_secret)
        },
        exact={(route.team, route.model): route for route in routes if route.pattern is None},
        globs=tuple(route for route in routes if route.pattern is not None),
        prices=PriceList(read.of(Price)),
        admitted=policies_of(rule.as_rule() for rule in _on_messages(rules)),
        broken=broken,
        secret_files={
            upstream.name: upstream.secret_file
            for upstream in read.of(Upstream)
            if upstream.enabled and upstream.secret_file
        },
        unread=read.unread,
    )


def server_of(upstream: Upstream, rules: Iterable[UpstreamPolicy]) -> Server:
    """``rules``: everybody's. ConfigError, TranslatorError, KeyError or ValueError: unusable."""
    dialect: Dialect = DIALECTS[upstream.dialect]
    profile: Profile = profile_with(upstream.profile, upstream.capabilities)
    server = Server.of(
        name=upstream.name,
        dialect=dialect,
        dialect_name=upstream.dialect,
        base_url=upstream.base_url,
        secret=upstream.credential(),
        profile=profile,
        timeouts=Timeouts(**upstream.timeouts),
        extra_body=upstream.extra_body,
        capabilities=upstream.capabilities,
        hears_out=upstream.when_client_leaves == Leaving.DRAIN,
        connection_reuse=upstream.connection_reuse,
    )
    rules = list(rules)
    policies = policies_of(
        (rule.as_rule() for rule in rules if rule.upstream_id in (upstream.pk, None)),
        native=upstream.dialect == "anthropic",
        wary=bool(_on_messages(rules)),
    )
    return dataclasses.replace(server, policies=policies)


def _on_messages(rules: Iterable[UpstreamPolicy]) -> list[UpstreamPolicy]:
    return [rule for rule in rules if rule.kind in IN_MESSAGES]


def _route(
    route: Route,
    targets: Iterable[RouteTarget],
    servers: Mapping[int, Server],
    ring: CarrierKeys,
) -> RouteEntry:
    usable = [each for each in targets if each.upstream_id in servers]
    is_glob = any(sign in route.model for sign in "*?[")
    return RouteEntry(
        model=route.model,
        team=route.team.name if route.team else None,
        pattern=re.compile(fnmatch.translate(route.model)) if is_glob else None,
        targets=tuple(
            Target(server=servers[each.upstream_id], model=each.model, carrier_keys=ring)
            for each in usable
        ),
        weights=tuple(each.weight for each in usable),
    )


def _team(team: Team) -> TeamEntry:
    return TeamEntry(
        name=team.name,
        store_full=team.store == "full",
        models=Globs(tuple(team.models_allowed)),
        limits=Limits.of(team.limits),
    )


def _caller(key: ApiKey, team: TeamEntry, budgets: Budgets) -> Caller:
    both = (key, key.successor) if key.successor else (key,)
    if any(one.keeps_no_words for one in both):
        team = dataclasses.replace(team, store_full=False)
    return Caller(
        key_id=key.pk,
        key_name=key.name,
        meter=f"{team.name}/{both[-1].name}",
        team=team,
        user=key.user.get_username() if key.user else "",
        scopes=frozenset(key.scopes),
        models=Globs(tuple(key.models_allowed)),
        limits=Limits.of(both[-1].limits),  # one meter has one size
        ip_allow=tuple(key.ip_allow),
        strict=bool(key.options.get("strict")),
        events=frozenset(key.options.get("events", ())),
        ends=ends_of(key),
        budgets=budgets.of(key),
    )


directory = Directory()
