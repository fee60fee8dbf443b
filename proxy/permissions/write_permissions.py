"""Define who may write which rows with which values, for the admin and for the API.

Django's permissions allow a user to write a table; ``WRITE_RULES`` limits which rows. A rule is
checked twice: for the row before the change and for the row after it. A user in groups named
``team:<name>`` leads these teams and may write only rows of these teams; other users with the
permission may write rows of every team. A user cannot create a key with more access than the user
has.

A member of a team is a user in the group ``team:<name>``, with or without permissions. Members may
make and rotate keys for themselves within the limits that the team sets (``member_keys``).

A caller is a user or a gateway key. The scopes of a key stand for permissions
(``SCOPE_PERMISSIONS``): with ``keys:write`` it writes the keys of its team, with ``config:write``
the configuration of all teams, with ``admin`` both and users. Management commands are not checked,
because the operator who runs them has access to the database.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db.models import Model, QuerySet

from proxy.models import (
    ApiKey,
    Budget,
    Pause,
    Price,
    Route,
    SavedReport,
    Scope,
    Team,
    Upstream,
    UpstreamPolicy,
    Webhook,
    WebhookDelivery,
)
from proxy.models.ledger_names import person_id

from .member_keys import limit_faults, member_limits
from .roles import INVITE_MEMBERS, PROBE_UPSTREAMS, PURGE_TRANSCRIPTS, STOP_REQUESTS
from .row_permissions import reader_of_user
from .writers import Writer, writer_of

ADD: Final = "add"
CHANGE: Final = "change"
DELETE: Final = "delete"
ROTATE: Final = "rotate"
"""The action that replaces a key's secret. The new secret is shown, so the action needs the rights
to create the key."""
REVOKE: Final = "revoke"
ADD_OWN: Final = "add own"
ROTATE_OWN: Final = "rotate own"
"""The actions of members on their own keys. They need no permission, only the team's consent."""
INVITE: Final = "invite"

Fault = tuple[str, str]
"""The name of a field, and the reason why the user may not write its value."""


def _labels(verbs: str, models: str, app: str = "proxy") -> frozenset[str]:
    return frozenset(f"{app}.{verb}_{model}" for verb in verbs.split() for model in models.split())


KEY_LABELS: Final = _labels("view add change", "apikey") | _labels("view", "team")
CONFIG_LABELS: Final = _labels(
    "view add change delete",
    "team route routetarget budget price upstream pause webhook savedreport",
) | _labels("view add change", "webhookdelivery")
READ_REPORTS: Final = _labels("view", "savedreport")
SCOPE_PERMISSIONS: Final[Mapping[str, frozenset[str]]] = {
    Scope.REPORTS: READ_REPORTS,
    Scope.REPORTS_READ: READ_REPORTS,
    Scope.KEYS_WRITE: KEY_LABELS,
    Scope.CONFIG_WRITE: CONFIG_LABELS,
    Scope.ADMIN: KEY_LABELS | CONFIG_LABELS | _labels("view add change", "user", "auth"),
}
"""Scope of a gateway key -> the permissions, by Django's labels, that the scope stands for."""


def has_permission(caller: Any, label: str) -> bool:
    """Whether a user, or a gateway key by its scopes, has one of Django's permissions."""
    if isinstance(caller, ApiKey):
        return any(label in SCOPE_PERMISSIONS.get(scope, ()) for scope in caller.scopes)
    return bool(caller.has_perm(label))


Rule = Callable[[Writer, Any], Iterator[Fault]]
"""A function that yields the reasons why the user may not write a row. For None instead of a row,
it yields the reasons that apply to every row."""


def for_superusers(writer: Writer, row: Any) -> Iterator[Fault]:
    if not writer.is_superuser:
        yield "", "only a superuser may write this"


def for_superusers_and_keys(writer: Writer, row: Any) -> Iterator[Fault]:
    """Allow superusers, and gateway keys whose scope covers the model."""
    if not isinstance(writer.caller, ApiKey):
        yield from for_superusers(writer, row)


def for_superusers_and_their_keys(writer: Writer, row: Any) -> Iterator[Fault]:
    """Allow superusers, and gateway keys that belong to one.

    Upstream credentials are sent to the URL of an upstream, and the log of deliveries shows what
    the URL of a webhook answers, so no other key may set one.
    """
    owner = writer.caller.user if isinstance(writer.caller, ApiKey) else writer.caller
    if owner is None or not (owner.is_active and owner.is_superuser):
        yield "", "only a superuser, or a gateway key of a superuser, may write this"


def for_users(writer: Writer, user: Any) -> Iterator[Fault]:
    """Allow superusers, and for gateway keys users who are not and do not become superusers."""
    yield from for_superusers_and_keys(writer, user)
    if user is not None and user.is_superuser and isinstance(writer.caller, ApiKey):
        yield "is_superuser", "only a superuser writes superusers, in the own session"


def for_all_teams(writer: Writer, row: Any) -> Iterator[Fault]:
    if not writer.has_all_teams:
        yield "", "it applies to every team, and you may write only for your teams"


def new_team(writer: Writer, team: Team | None) -> Iterator[Fault]:
    yield from for_all_teams(writer, team)
    yield from grantable_to_members(writer, team)


def own_team(writer: Writer, team: Team | None) -> Iterator[Fault]:
    if team is not None and not writer.leads(team):
        yield "name", f"{team.name!r} is not one of your teams"
    elif team is not None and not writer.has_all_teams:
        before = Team.objects.filter(pk=team.pk).values_list("name", flat=True).first()
        if before != team.name:
            yield "name", f"the name stays {before!r}: you may write only for your teams"
    yield from grantable_to_members(writer, team)


def grantable_to_members(writer: Writer, team: Team | None) -> Iterator[Fault]:
    """Let members give their keys only scopes that the writer may grant."""
    if team is None or writer.is_superuser:
        return
    for scope in member_limits(team).scopes:
        if reason := GRANTS[scope](writer, team):
            yield "member_keys", reason


def of_own_team(writer: Writer, row: Any) -> Iterator[Fault]:
    if row is None or writer.has_all_teams:
        return
    if row.team is None:
        yield "team", "choose one of your teams; without a team it applies to every team"
    elif not writer.leads(row.team):
        yield "team", f"{row.team.name!r} is not one of your teams"


def of_own_team_or_name(writer: Writer, key: ApiKey | None) -> Iterator[Fault]:
    """Allow keys of the writer's teams, and the writer's own keys in any team."""
    if key is None or key.user is None or key.user != writer.caller:
        yield from of_own_team(writer, key)


def within_own_access(writer: Writer, key: ApiKey | None) -> Iterator[Fault]:
    """Allow keys of the writer's teams, for users of these teams, with scopes in ``GRANTS``."""
    if key is None or writer.is_superuser:
        return
    yield from of_own_team(writer, key)
    if key.user is not None and not writer.people().filter(pk=key.user.pk).exists():
        yield "user", f"{key.user.get_username()!r} has no key and no group of your teams"
    for scope in key.scopes if isinstance(key.scopes, list) else [key.scopes]:
        grant = GRANTS.get(scope) if isinstance(scope, str) else None
        reason = grant(writer, key.team) if grant else f"{scope!r} is not a scope"
        if reason:
            yield "scopes", reason


def own_key(writer: Writer, key: ApiKey | None) -> Iterator[Fault]:
    """Allow keys of the writer in a team of the writer, within the team's limits for members."""
    if key is None:
        return
    if key.team.ledger_id not in writer.groups:
        yield "team", f"you are not in the group 'team:{key.team.name}'"
    if key.user is None or key.user != writer.caller:
        yield "user", "it is not your own key"
    yield from limit_faults(key)


def own_team_for_members(writer: Writer, team: Team | None) -> Iterator[Fault]:
    if team is not None and not writer.leads(team):
        yield "team", f"{team.name!r} is not one of your teams"


def _grant_reading(scope: str) -> "Grant":
    """Return the rule of a scope that a caller grants who sees the rows of the team."""

    def reason(writer: Writer, team: Team) -> str:
        if writer.reader.everything or team.ledger_id in writer.reader.teams:
            return ""
        return f"the scope {scope!r} reads the usage of {team.name!r}, which you may not see"

    return reason


def _grant_keys(writer: Writer, team: Team) -> str:
    held = all(has_permission(writer.caller, label) for label in KEY_LABELS)
    return "" if held else "the scope 'keys:write' allows more than you may do"


def _grant_nothing(scope: str) -> "Grant":
    return lambda _writer, _team: f"only a superuser grants the scope {scope!r}"


Grant = Callable[[Writer, Team], str]
GRANTS: Final[Mapping[str, Grant]] = {
    Scope.MESSAGES.value: lambda _writer, _team: "",
    Scope.REPORTS.value: _grant_reading("reports"),
    Scope.REPORTS_READ.value: _grant_reading("reports:read"),
    Scope.TRANSCRIPTS_READ.value: _grant_nothing("transcripts:read"),
    Scope.KEYS_WRITE.value: _grant_keys,
    Scope.CONFIG_WRITE.value: _grant_nothing("config:write"),
    Scope.ADMIN.value: _grant_nothing("admin"),
}
"""Scope -> function that returns why this caller may not grant the scope; empty if it may."""


def budget_of_own_team(writer: Writer, budget: Budget | None) -> Iterator[Fault]:
    """Allow budgets of the writer's teams and of these teams' keys.

    A budget of a user is not allowed, because it counts the user's requests in every team.
    """
    if budget is None or writer.has_all_teams:
        return
    if budget.user is not None:
        yield (
            "user",
            "a budget of a user applies to every team, and you may write only for your teams",
        )
    if budget.key is not None and not writer.leads(budget.key.team):
        yield "key", f"{budget.key.team.name!r} is not one of your teams"
    if budget.team is not None and not writer.leads(budget.team):
        yield "team", f"{budget.team.name!r} is not one of your teams"


def delivery_of_own_team(writer: Writer, delivery: WebhookDelivery | None) -> Iterator[Fault]:
    """Allow sending to webhooks of the writer's teams, and mails about budgets of these teams."""
    if delivery is None or writer.has_all_teams:
        return
    webhook = delivery.webhook
    if webhook is None:
        team = delivery.event.team
    else:
        team = webhook.team.ledger_id if webhook.team is not None else ""
    if team not in (writer.teams or ()):
        yield "webhook", "it does not belong to one of your teams"


def own_report_or_team(writer: Writer, report: SavedReport | None) -> Iterator[Fault]:
    """Allow reports of the writer, and of teams whose rows the writer may write."""
    if report is None:
        return
    if report.team is not None:
        if not writer.leads(report.team):
            yield "team", f"{report.team.name!r} is not one of your teams"
    elif report.user is None or report.user != _person(writer.caller):
        yield "user", "it is not your own report"


def own_report_or_any_of_superusers(writer: Writer, report: SavedReport | None) -> Iterator[Fault]:
    """Allow also superusers, because the reports of a user are deleted with the user."""
    if any(for_superusers_and_their_keys(writer, report)):
        yield from own_report_or_team(writer, report)


def _person(caller: Any) -> Any:
    return caller.user if isinstance(caller, ApiKey) else caller


WRITE_RULES: Final[Mapping[type[Model], Mapping[str, Rule]]] = {
    Team: {
        ADD: new_team,
        CHANGE: own_team,
        DELETE: for_all_teams,
        INVITE: own_team_for_members,
    },
    ApiKey: {
        ADD: within_own_access,
        CHANGE: within_own_access,
        ROTATE: within_own_access,
        REVOKE: of_own_team_or_name,
        ADD_OWN: own_key,
        ROTATE_OWN: own_key,
    },
    Budget: dict.fromkeys((ADD, CHANGE, DELETE), budget_of_own_team),
    Route: dict.fromkeys((ADD, CHANGE, DELETE), of_own_team),
    Price: dict.fromkeys((ADD, CHANGE, DELETE), for_all_teams),
    Upstream: dict.fromkeys((ADD, CHANGE, DELETE), for_superusers_and_their_keys),
    UpstreamPolicy: dict.fromkeys((ADD, CHANGE, DELETE), for_all_teams),
    get_user_model(): dict.fromkeys((ADD, CHANGE), for_users),
    Pause: dict.fromkeys((ADD, CHANGE, DELETE), for_all_teams),
    SavedReport: {
        **dict.fromkeys((ADD, CHANGE), own_report_or_team),
        DELETE: own_report_or_any_of_superusers,
    },
    Webhook: dict.fromkeys((ADD, CHANGE, DELETE), for_superusers_and_their_keys),
    WebhookDelivery: dict.fromkeys((ADD, CHANGE), delivery_of_own_team),
}
"""Model -> action -> rule. Of the users, only superusers may write the other models, and upstreams
and webhooks, because the gateway calls their URLs and sends data to them, and users, who could make
themselves superusers."""

PERMISSION_OF: Final[Mapping[str, str]] = {ROTATE: CHANGE, REVOKE: CHANGE}
"""Action -> the action that names its permission of Django, if it is another one."""


def faults(caller: Any, action: str, model: type[Model], row: Any = None) -> list[Fault]:
    """Return why this caller may not apply the action to the row; empty if the caller may.

    Without a row, return why the caller may not apply the action to any row of the model. Django's
    permissions are checked separately.
    """
    rule = WRITE_RULES.get(model, {}).get(action, for_superusers)
    return list(rule(writer_of(caller), row))


def may_write(caller: Any, action: str, model: type[Model], row: Any = None) -> bool:
    return not faults(caller, action, model, row)


def has_write_permission(caller: Any, action: str, model: type[Model], row: Any = None) -> bool:
    """Whether the caller has the permission of the model, and ``WRITE_RULES`` allow the action."""
    names = model._meta  # noqa: SLF001 - documented by Django
    label = f"{names.app_label}.{PERMISSION_OF.get(action, action)}_{names.model_name}"
    return has_permission(caller, label) and may_write(caller, action, model, row)


def choices(caller: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return those of the rows that this caller may choose as the value of a foreign key."""
    writer = writer_of(caller)
    if writer.teams is None:
        return rows
    if rows.model is Team:
        return rows.filter(ledger_id__in=writer.teams)
    if rows.model is ApiKey:
        return rows.filter(team__ledger_id__in=writer.teams)
    if rows.model is get_user_model():
        return rows.filter(pk__in=writer.people().values("pk"))
    return rows


def may_revoke(user: Any, key: ApiKey) -> bool:
    """Whether this user may revoke the key: an own key, or with permission a key of own teams."""
    is_own = key.user is not None and key.user == user
    return may_write(user, REVOKE, ApiKey, key) and (
        is_own or bool(user.has_perm("proxy.change_apikey"))
    )


def may_rotate(user: Any, key: ApiKey) -> bool:
    """Whether this user may rotate the key, which shows its new secret."""
    with_permission = user.has_perm("proxy.change_apikey") and may_write(user, ROTATE, ApiKey, key)
    return with_permission or may_write(user, ROTATE_OWN, ApiKey, key)


def own_key_teams(user: Any) -> list[Team]:
    """Return the teams of which this user is a member and may make keys for themselves."""
    teams = Team.objects.filter(ledger_id__in=writer_of(user).groups)
    return [team for team in teams if member_limits(team).count]


def may_invite(user: Any, team: Team | None = None) -> bool:
    """Whether this user may create users, who become members of the team."""
    return bool(user.has_perm(f"proxy.{INVITE_MEMBERS}")) and may_write(user, INVITE, Team, team)


def may_stop(user: Any, *, owner: str) -> bool:
    """Whether this user may stop a running request of the person ``owner``, perhaps the user."""
    return bool(user.has_perm(f"proxy.{STOP_REQUESTS}") or owner == person_id(user))


def may_purge(user: Any) -> bool:
    """Whether this user may purge transcripts; a user who sees only some teams may not."""
    return bool(user.has_perm(f"proxy.{PURGE_TRANSCRIPTS}") and reader_of_user(user).everything)


def may_probe(user: Any) -> bool:
    return bool(user.has_perm(f"proxy.{PROBE_UPSTREAMS}"))


def may_forget_lessons(user: Any, upstream: Upstream) -> bool:
    """Whether this user may reset what is remembered of the upstream's models."""
    return has_write_permission(user, "change", Upstream, upstream)
