"""Define which ledger rows a caller may see, for the admin and for the reports API.

By default no row is visible. A gateway key sees the rows that its scopes allow. A user of the admin
with the permission ``view_exchange`` sees the rows of the teams that the groups of ``team_grants``
name. A user in the group ``member`` has only ``view_own_exchange``, and sees only requests made
with the user's own keys.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Q, QuerySet

from proxy.admission_checks import AdmissionDryRun, without_figures
from proxy.models import (
    ActorKind,
    ApiKey,
    AuditEntry,
    Budget,
    Exchange,
    Route,
    SavedReport,
    Scope,
    Team,
    Webhook,
    WebhookDelivery,
)
from proxy.models.ledger_names import person_id

from .roles import OWN_REQUESTS
from .team_grants import leads_all_teams, teams_of

READ_TEAM: Final = frozenset({Scope.REPORTS, Scope.REPORTS_READ, Scope.TRANSCRIPTS_READ})
"""Scopes with which a key sees the rows of its team."""

VIEW_LEDGER: Final = "proxy.view_exchange"
VIEW_OWN: Final = f"proxy.{OWN_REQUESTS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The ledger rows that a caller (a gateway key or a user) may see on pages and in reports."""

    everything: bool = False
    teams: frozenset[str] = field(default_factory=frozenset)
    """The ledger ids of the teams whose rows are visible."""
    user: str = ""
    """The ledger id of the person whose rows are visible; empty if the caller is a key."""
    key_id: int | None = None
    """The id of the key whose rows are visible; None if the caller is a user."""
    label: str = ""
    """Identifies the caller in rate limits and logs."""

    @property
    def may_report(self) -> bool:
        """Whether this reader sees rows of other callers."""
        return self.everything or bool(self.teams)


def reader_of_key(key: ApiKey) -> Reader:
    """Return which rows of the ledger a gateway key may see.

    A key with the scope ``admin`` sees all rows, with a scope in ``READ_TEAM`` the rows of its
    team; any other key sees its own rows.
    """
    label = f"key:{key.pk}"
    if Scope.ADMIN in key.scopes:
        return Reader(everything=True, key_id=key.pk, label=label)
    if READ_TEAM.intersection(key.scopes):
        return Reader(teams=frozenset({key.team.ledger_id}), key_id=key.pk, label=label)
    return Reader(key_id=key.pk, label=label)


def config_reader_of_key(key: ApiKey) -> Reader:
    """Return which rows of the configuration a gateway key may see."""
    if Scope.CONFIG_WRITE in key.scopes:
        return Reader(everything=True, key_id=key.pk, label=f"key:{key.pk}")
    if Scope.KEYS_WRITE in key.scopes and Scope.ADMIN not in key.scopes:
        return Reader(teams=frozenset({key.team.ledger_id}), key_id=key.pk, label=f"key:{key.pk}")
    return reader_of_key(key)


def reader_of_user(user: Any) -> Reader:
    """Return what a user may see.

    A staff user with ``view_exchange`` sees the teams of the user's groups. Any other user sees
    only the user's own rows.
    """
    label = f"user:{user.pk}"
    own = person_id(user)
    if not (user.is_active and user.is_staff and user.has_perm(VIEW_LEDGER)):
        return Reader(user=own, label=label)
    if leads_all_teams(user):
        return Reader(everything=True, user=own, label=label)
    return Reader(teams=teams_of(user), user=own, label=label)


def can_open_admin(user: Any) -> bool:
    """Whether this user may open the request list, in which only ``visible_rows`` are shown."""
    return bool(user.is_active and (user.has_perm(VIEW_LEDGER) or user.has_perm(VIEW_OWN)))


def own_rows(reader: Reader) -> Q:
    """Return the query condition for the reader's own rows."""
    own = Q(pk__in=())
    if reader.key_id is not None:
        own |= Q(key_id=reader.key_id)
    if reader.user:
        own |= Q(user=reader.user)
    return own


def visible_rows(reader: Reader) -> Q:
    """Return the query condition for all rows that the reader may see.

    It fits every table with the columns ``team``, ``key_id`` and ``user``.
    """
    if reader.everything:
        return Q()
    if reader.teams:
        return Q(team__in=reader.teams) | own_rows(reader)
    return own_rows(reader)


def can_see(reader: Reader, *, team: str, key_id: int | None, user: str) -> bool:
    """Return whether the reader may see a row with these values, by the rule of ``visible_rows``.

    It is for rows that are not in the database, such as running requests.
    """
    own = is_own(reader, key_id=key_id, user=user)
    return reader.everything or own or team in reader.teams


def is_own(reader: Reader, *, key_id: int | None, user: str) -> bool:
    """Return whether a row with these values is the reader's own, by the rule of ``own_rows``."""
    return (reader.key_id is not None and key_id == reader.key_id) or (
        bool(reader.user) and user == reader.user
    )


def visible_exchanges(reader: Reader) -> QuerySet[Exchange]:
    return Exchange.objects.filter(visible_rows(reader))


def visible_teams(reader: Reader) -> QuerySet[Team]:
    teams = Team.objects.all()
    return teams if reader.everything else teams.filter(ledger_id__in=reader.teams)


def led_teams(user: Any) -> QuerySet[Team]:
    """Return the teams that the user's groups name, also for a user who may not see the ledger."""
    teams = Team.objects.all()
    return teams if leads_all_teams(user) else teams.filter(ledger_id__in=teams_of(user))


def visible_budgets(reader: Reader) -> QuerySet[Budget]:
    """Return the budgets of the reader's teams, of the keys of these teams, and of the reader."""
    budgets = Budget.objects.select_related("team", "key__team", "user")
    budgets = budgets.prefetch_related("key__retiring")
    if reader.everything:
        return budgets
    condition = Q(team__ledger_id__in=reader.teams) | Q(key__team__ledger_id__in=reader.teams)
    if reader.user:
        condition |= Q(user__person=reader.user) | Q(key__user__person=reader.user)
    if reader.key_id is not None:
        condition |= Q(key=reader.key_id) | Q(key__retiring=reader.key_id)
    return budgets.filter(condition)


def visible_webhooks(reader: Reader) -> QuerySet[Webhook]:
    """Return the webhooks of the reader's teams; those of no team only if all rows are visible."""
    webhooks = Webhook.objects.select_related("team")
    return webhooks if reader.everything else webhooks.filter(team__ledger_id__in=reader.teams)


def visible_saved_reports(reader: Reader) -> QuerySet[SavedReport]:
    """Return the reader's own reports, and those of the reader's teams.

    The own reports of a gateway key are those of the user whom the key belongs to.
    """
    reports = SavedReport.objects.select_related("team", "user")
    shared = Q(user=None) if reader.everything else Q(team__ledger_id__in=reader.teams)
    if reader.user:
        own = Q(user__person=reader.user)
    else:
        own = Q(
            user__in=ApiKey.objects.filter(pk=reader.key_id or 0, user__isnull=False).values("user")
        )
    return reports.filter(shared | own)


def visible_deliveries(reader: Reader) -> QuerySet[WebhookDelivery]:
    """Return the deliveries to visible webhooks, and the mails about budgets of the teams."""
    deliveries = WebhookDelivery.objects.select_related("event", "webhook__team")
    if reader.everything:
        return deliveries
    mails = Q(webhook=None, event__team__in=reader.teams)
    return deliveries.filter(Q(webhook__team__ledger_id__in=reader.teams) | mails)


def visible_entries(reader: Reader) -> QuerySet[AuditEntry]:
    """Return the entries of the audit log that the reader may see.

    A reader limited to teams sees the entries on objects of these teams. Every user also sees what
    the user did, and who read the user's own transcripts.
    """
    entries = AuditEntry.objects.all()
    if reader.everything:
        return entries
    condition = Q(pk__in=())
    if reader.teams:
        condition |= Q(team__in=reader.teams)
    if reader.user:
        condition |= Q(actor_kind=ActorKind.USER, user=reader.user) | Q(subject=reader.user)
    return entries.filter(condition)


def visible_routes(user: Any) -> QuerySet[Route]:
    """Return the routes of the teams that the user's groups name, and those of no team."""
    routes = Route.objects.all()
    if leads_all_teams(user):
        return routes
    teams = teams_of(user)
    return routes.filter(Q(team__ledger_id__in=teams) | Q(team=None)) if teams else routes.none()


def visible_keys(reader: Reader) -> QuerySet[ApiKey]:
    """Return the gateway keys that the reader may see.

    A reader that is a key without the scopes ``reports`` and ``admin`` sees only itself.
    """
    keys = ApiKey.objects.select_related("team", "user")
    if reader.everything:
        return keys
    return keys.filter(
        Q(team__ledger_id__in=reader.teams)
        | Q(pk=reader.key_id)
        | (Q(user__person=reader.user) if reader.user else Q(pk__in=()))
    )


def as_seen_by(reader: Reader, key: ApiKey, dry_run: AdmissionDryRun) -> AdmissionDryRun:
    """Return the result of an admission dry run without the figures that the reader may not see.

    A dry run tests whether the gateway would accept a request with this key. The owner of the key
    sees everything. The leader of a team sees the team's keys, but not the budget of a key's user,
    because that budget also counts the user's requests in other teams.
    """
    own = reader.key_id == key.pk or bool(key.user and person_id(key.user) == reader.user)
    if own or reader.everything:
        return dry_run
    return without_figures(dry_run, set(visible_budgets(reader).values_list("pk", flat=True)))
