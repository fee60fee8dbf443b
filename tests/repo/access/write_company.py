"""Fill a gateway's database with teams and users: ``python -m tests.repo.access.write_company``.

``platform`` and ``empty`` are led by Ada; ``research`` and ``attic`` are not. Print JSON: the
password of all users, the secrets of the keys and the ids of the rows by name.
"""

import json
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
django.setup()

from django.contrib.auth.hashers import make_password  # noqa: E402 - models come after the setup
from django.contrib.auth.models import Group, User  # noqa: E402
from django.utils.timezone import now  # noqa: E402

from proxy.ledger.webhooks.outbox import record_test_event  # noqa: E402
from proxy.models import (  # noqa: E402
    AuditEntry,
    Budget,
    Drift,
    Pause,
    Price,
    Route,
    RouteTarget,
    SavedReport,
    SavedView,
    Team,
    Upstream,
    UpstreamPolicy,
    Webhook,
)
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER  # noqa: E402
from tests.fakes.servers.gateway import REPOSITORY, Gateway  # noqa: E402
from tests.proxy.admin import factories  # noqa: E402

PASSWORD = "a long enough password"
CLERK = [
    f"{verb}_{model}"
    for model in (
        "team",
        "apikey",
        "route",
        "routetarget",
        "budget",
        "price",
        "upstreampolicy",
        "pause",
        "webhook",
        "webhookdelivery",
        "savedreport",
    )
    for verb in ("view", "add", "change", "delete")
]
"""Permissions to write, without the permission to see requests."""
PEOPLE = {
    "staff": ("olga", (), ()),
    "member": ("ben", (), (MEMBER, "team:platform")),
    "auditor": ("aude", (), (AUDITOR,)),
    "clerk": ("carl", CLERK, ("team:platform",)),
    "lead": ("ada", ("delete_team", "delete_price"), (OWNER, "team:platform", "team:empty")),
    "owner": ("otto", ("delete_team", "delete_price"), (OWNER,)),
    "root": ("root", (), ()),
}
"""Role -> name, permissions, groups. Lead and owner may delete more than their groups allow."""


QUICK_PASSWORDS = {"DJANGO_SETTINGS_MODULE": "tests.repo.access.quick_passwords_settings"}
"""Environment of a gateway at which many users sign in."""


def fill(gateway: Gateway) -> Any:
    """Run this module with the gateway's settings and return the JSON that it prints."""
    settings = gateway.environment.get("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.repo.access.write_company"],
        cwd=REPOSITORY,
        env={**os.environ, "BRIDGE_DATA_DIR": str(gateway.folder / "data"),
             "DJANGO_SETTINGS_MODULE": settings},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def company() -> dict[str, object]:
    stored = make_password(PASSWORD)
    users = {role: factories.staff(name, *may, groups=groups) for role, (name, may, groups) in PEOPLE.items()}  # fmt: skip
    users["cleo"] = factories.staff("cleo", groups=(MEMBER, "team:research"))
    User.objects.filter(username="root").update(is_superuser=True)
    User.objects.update(password=stored)
    ben, cleo = users["member"], users["cleo"]
    keys = {
        "ci": factories.key("ci"),
        "ben_key": factories.key("ben", user=ben),
        "dashboard_key": factories.key("dashboard", scopes=["reports"]),
        "finance": factories.key("finance", scopes=["admin"]),
        "lab": factories.key("lab", of="research"),
        "cleo_key": factories.key("cleo", of="research", user=cleo),
        "ada_lab": factories.key("ada", of="research", user=users["lead"]),
    }
    teams = {name: factories.team(name) for name in ("platform", "research", "empty", "attic")}
    Team.objects.filter(name__in=("platform", "research")).update(member_keys={"count": 9})
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://127.0.0.1:9")
    idle = Upstream.objects.create(name="idle", dialect="chat", base_url="http://127.0.0.1:9")
    routes = {
        f"{name}_route": Route.objects.create(model=f"{name}-*", team=teams.get(name))
        for name in ("platform", "research", "common")
    }
    targets = {
        name.replace("_route", "_target"): RouteTarget.objects.create(
            route=route, upstream=upstream
        )
        for name, route in routes.items()
    }
    at = now() - timedelta(minutes=1)
    requests = {
        f"{name}_request": factories.record(key=keys[key][0], team=of, at=at + timedelta(seconds=n), closed=False, opening={"user": user})
        for n, (name, key, of, user) in enumerate((
            ("ci", "ci", "platform", ""), ("ben", "ben_key", "platform", "ben"),
            ("lab", "lab", "research", ""),
        ))
    }  # fmt: skip
    webhooks = {
        f"{name}_webhook": Webhook(name=name, url="http://127.0.0.1:9/", team=team, enabled=False)
        for name, team in (("platform", teams["platform"]), ("research", teams["research"]), ("common", None))
    }  # fmt: skip
    for webhook in webhooks.values():
        webhook.give_secret()
        webhook.save()
    old = factories.record(at=now() - timedelta(days=400), key=keys["ci"][0])
    rows = {
        **users,
        **{name: key for name, (key, _) in keys.items()},
        **teams,
        **routes,
        **targets,
        **requests,
        **webhooks,
        **{
            name.replace("webhook", "delivery"): record_test_event(webhook)
            for name, webhook in webhooks.items()
        },
        "old_request": old,
        "vllm": upstream,
        "idle": idle,
        "price": Price.objects.create(model="m", since="2026-01-01", input=1, output=2),
        "audit": AuditEntry.objects.create(action="read", actor_kind="user", user="ben"),
        "pause": Pause.objects.create(model="m", message="later"),
        "policy": UpstreamPolicy.objects.create(kind="beta", name="old", action="drop"),
        "drift": Drift.objects.create(kind="beta", name="b", first_seen=at, last_seen=at),
        "team_budget": Budget.objects.create(team=teams["platform"], usd=10),
        "key_budget": Budget.objects.create(key=keys["ci"][0], usd=10),
        "ben_budget": Budget.objects.create(user=ben, usd=10),
        "ada_budget": Budget.objects.create(user=users["lead"], usd=10),
        "lab_team_budget": Budget.objects.create(team=teams["research"], usd=10),
        "lab_budget": Budget.objects.create(key=keys["lab"][0], usd=10),
        "member_group": Group.objects.get(name=MEMBER),
        "lead_group": Group.objects.get(name="team:platform"),
        **{
            f"{role}_view": SavedView.objects.create(user=user, name="mine")
            for role, user in users.items()
        },
    }
    rows |= {
        f"{name}_report": SavedReport.objects.create(name=name, report="usage", **owner)
        for name, owner in {
            "platform": {"team": teams["platform"]}, "research": {"team": teams["research"]},
            "ada": {"user": users["lead"]}, "cleo": {"user": cleo},
        }.items()
    }  # fmt: skip
    return {
        "password": PASSWORD,
        "secrets": {name: secret for name, (_, secret) in keys.items()},
        "ids": {name: row.pk for name, row in rows.items()},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(company()))
