"""Fill a gateway's database with teams and users.

``platform`` and ``empty`` are led by Ada; ``research`` and ``attic`` are not.
"""

import json
from datetime import timedelta
from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, User
from django.utils.timezone import now

from proxy.ledger.webhooks import record_test_event
from proxy.models import (
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
from proxy.models.ledger_names import person_id
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.servers.gateway import Gateway
from tests.proxy.admin import factories

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
    """Run ``company`` with the gateway's settings and return what it returns."""
    program = f"import json; from {__name__} import company; print(json.dumps(company()))"
    return json.loads(gateway.manage("shell", "--verbosity", "0", "-c", program))


def company() -> dict[str, object]:
    """Create the rows; return the password of all users, the secrets and the ids by name."""
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
        "audit": AuditEntry.objects.create(action="read", actor_kind="user", user=person_id(ben)),
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
