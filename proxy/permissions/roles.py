"""The three default groups of users and their permissions, and the group of all teams.

``ROLES`` has the permissions of a new group. An existing group gets only the permissions that are
new in this version, so an operator's changes are preserved. Superusers assign users to groups, or
the OpenID Connect sign-in does (``BRIDGE_OIDC_*``).
"""

from collections.abc import Mapping
from typing import Any, Final

from django.apps import apps
from django.db import connections

OWNER: Final = "owner"
AUDITOR: Final = "auditor"
MEMBER: Final = "member"

TEAM_GROUP: Final = "team:"
ALL_TEAMS: Final = f"{TEAM_GROUP}*"
"""The group that grants all teams; no team has this name."""

OWN_REQUESTS: Final = "view_own_exchange"
"""Permission to see one's own requests in the admin; ``view_exchange`` shows other users' too."""

STOP_REQUESTS: Final = "stop_exchange"
INVITE_MEMBERS: Final = "invite_member"
"""Permission to create a user in the group ``member``, with a first key, for one's own teams."""

PROBE_UPSTREAMS: Final = "probe_upstream"
PURGE_TRANSCRIPTS: Final = "purge_transcript"

CUSTOM_PERMISSIONS: Final[Mapping[str, tuple[str, str]]] = {
    OWN_REQUESTS: ("exchange", "Can view own requests"),
    STOP_REQUESTS: ("exchange", "Can stop running requests"),
    INVITE_MEMBERS: ("team", "Can invite members"),
    PROBE_UPSTREAMS: ("upstream", "Can test upstreams"),
    PURGE_TRANSCRIPTS: ("transcript", "Can purge transcripts past their retention"),
}
"""Permissions that Django does not create by default: codename -> (model, name)."""

CONFIGURED: Final = (
    "team", "apikey", "route", "routetarget", "price", "budget", "upstreampolicy", "pause",
)  # fmt: skip
DELETED: Final = ("route", "routetarget", "budget", "upstreampolicy", "pause")
READ: Final = tuple(
    f"proxy.view_{model}"
    for model in (
        *CONFIGURED,
        "auditentry",
        "budgetnotice",
        "drift",
        "savedreport",
        "upstream",
        "webhook",
        "webhookdelivery",
        "exchange",
        "transcript",
        "part",
    )
)

ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    OWNER: (
        *READ,
        *(f"proxy.{verb}_{model}" for verb in ("add", "change") for model in CONFIGURED),
        *(f"proxy.delete_{model}" for model in DELETED),
        *(f"proxy.{verb}_savedreport" for verb in ("add", "change", "delete")),
        "proxy.add_webhookdelivery",
        "proxy.change_webhookdelivery",
        f"proxy.{STOP_REQUESTS}",
        f"proxy.{INVITE_MEMBERS}",
        f"proxy.{PROBE_UPSTREAMS}",
        f"proxy.{PURGE_TRANSCRIPTS}",
        "auth.view_user",
        "auth.view_group",
    ),
    AUDITOR: (*READ, "auth.view_user", "auth.view_group"),
    MEMBER: (f"proxy.{OWN_REQUESTS}", "proxy.view_transcript", "proxy.view_apikey",
             "proxy.view_budget"),
}  # fmt: skip


_permissions_before: Final[dict[str, frozenset[str]]] = {}
"""Database alias -> labels of the permissions that existed before the migration."""


def note_permissions(using: str = "default", **_: Any) -> None:
    """Before a migration, remember which permissions exist; a new database has none."""
    table = apps.get_model("auth", "Permission")._meta.db_table  # noqa: SLF001 - documented API
    tables = connections[using].introspection.table_names()
    _permissions_before[using] = frozenset(_permissions(using)) if table in tables else frozenset()


def make_roles(using: str = "default", **_: Any) -> None:
    """After a migration, create missing default groups, and add new permissions to existing groups.

    Only permissions in the database can be added; some are missing there if an operator migrates
    back to an earlier migration. Without the audit log's table (after ``migrate auth`` on a new
    database) nothing is created, because each change of a group is recorded there: the migration
    that creates the table calls this function again.
    """
    table = apps.get_model("proxy", "AuditEntry")._meta.db_table  # noqa: SLF001 - documented API
    if table not in connections[using].introspection.table_names():
        return
    _create_custom_permissions(using)
    existing = _permissions(using)
    new = existing.keys() - _permissions_before.pop(using, existing.keys())
    groups = apps.get_model("auth", "Group").objects.using(using)
    groups.get_or_create(name=ALL_TEAMS)
    for name, granted in ROLES.items():
        group, is_created = groups.get_or_create(name=name)
        added = existing.keys() if is_created else new
        group.permissions.add(*(existing[label] for label in granted if label in added))


def are_complete(using: str = "default") -> bool:
    """Return whether the default groups and the permissions that Django does not create exist."""
    groups = apps.get_model("auth", "Group").objects.using(using)
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    found = (
        groups.filter(name__in=(*ROLES, ALL_TEAMS)).count(),
        permissions.filter(
            content_type__app_label="proxy", codename__in=CUSTOM_PERMISSIONS
        ).count(),
    )
    return found == (len(ROLES) + 1, len(CUSTOM_PERMISSIONS))


def _create_custom_permissions(using: str) -> None:
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    content_types = apps.get_model("contenttypes", "ContentType").objects.using(using)
    content_type_of = {
        content_type.model: content_type for content_type in content_types.filter(app_label="proxy")
    }
    for codename, (model, title) in CUSTOM_PERMISSIONS.items():
        if model in content_type_of:
            permissions.get_or_create(
                codename=codename, content_type=content_type_of[model], defaults={"name": title}
            )


def _permissions(using: str) -> dict[str, int]:
    """Return the primary key of each permission by its label, such as ``proxy.view_team``."""
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    rows = permissions.values_list("content_type__app_label", "codename", "pk")
    return {f"{app}.{codename}": pk for app, codename, pk in rows}
