"""The three groups that every installation starts with, and what each may do.

The table is only the beginning: a group that exists gets a permission once, when it is new here,
so an operator's own choice stays. Who is in which group is for superusers, or for the sign-in
(``BRIDGE_OIDC_*``), to say.
"""

from collections.abc import Mapping
from typing import Any, Final

from django.apps import apps
from django.db import connections

OWNER: Final = "owner"
AUDITOR: Final = "auditor"
MEMBER: Final = "member"

OWN_REQUESTS: Final = "view_own_exchange"
"""Opens the windows on nothing but the user's own rows; ``view_exchange`` opens them wider."""

STOP_REQUESTS: Final = "stop_exchange"
PROBE_UPSTREAMS: Final = "probe_upstream"
PURGE_TRANSCRIPTS: Final = "purge_transcript"

OURS: Final[Mapping[str, tuple[str, str]]] = {
    OWN_REQUESTS: ("exchange", "Can view own requests"),
    STOP_REQUESTS: ("exchange", "Can stop running requests"),
    PROBE_UPSTREAMS: ("upstream", "Can test upstreams"),
    PURGE_TRANSCRIPTS: ("transcript", "Can purge transcripts past their retention"),
}
"""Permissions that Django does not make by itself: the model each is about, and its name."""

CONFIGURED: Final = (
    "team", "apikey", "route", "routetarget", "price", "budget", "upstreampolicy",
)  # fmt: skip
DELETED: Final = ("route", "routetarget", "budget", "upstreampolicy")
READ: Final = tuple(
    f"proxy.view_{model}"
    for model in (
        *CONFIGURED,
        "budgetnotice",
        "drift",
        "upstream",
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
        f"proxy.{STOP_REQUESTS}",
        f"proxy.{PROBE_UPSTREAMS}",
        f"proxy.{PURGE_TRANSCRIPTS}",
        "auth.view_user",
        "auth.view_group",
    ),
    AUDITOR: (*READ, "auth.view_user", "auth.view_group"),
    MEMBER: (f"proxy.{OWN_REQUESTS}", "proxy.view_transcript", "proxy.view_apikey",
             "proxy.view_budget"),
}  # fmt: skip


_before: Final[dict[str, frozenset[str]]] = {}
"""By database: the permissions that were there when its migration began."""


def note_permissions(using: str = "default", **_: Any) -> None:
    """Before each migration. A new database has no table of them yet."""
    table = apps.get_model("auth", "Permission")._meta.db_table  # noqa: SLF001 - documented API
    tables = connections[using].introspection.table_names()
    _before[using] = frozenset(_permissions(using)) if table in tables else frozenset()


def make_roles(using: str = "default", **_: Any) -> None:
    """After each migration: the groups that are missing, and in all of them what is new.

    What a later migration brings is not there yet when an operator stops at an earlier one.
    """
    _make_ours(using)
    there = _permissions(using)
    new = there.keys() - _before.pop(using, there.keys())
    for name, granted in ROLES.items():
        group, made = apps.get_model("auth", "Group").objects.using(using).get_or_create(name=name)
        due = there.keys() if made else new
        group.permissions.add(*(there[label] for label in granted if label in due))


def _make_ours(using: str) -> None:
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    content_types = apps.get_model("contenttypes", "ContentType").objects.using(using)
    about = {each.model: each for each in content_types.filter(app_label="proxy")}
    for codename, (model, title) in OURS.items():
        if model in about:
            permissions.get_or_create(
                codename=codename, content_type=about[model], defaults={"name": title}
            )


def _permissions(using: str) -> dict[str, int]:
    """Keys by label, such as ``proxy.view_team``."""
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    told = permissions.values_list("content_type__app_label", "codename", "pk")
    return {f"{app}.{codename}": pk for app, codename, pk in told}
