"""Fills a gateway with two teams and everybody who might write: ``python -m tests.house.write_company``.

``platform`` and ``empty`` are led by Ada; ``research`` and ``attic`` are not. Prints, as JSON, the
password of all people, the secrets of the keys and the ids of the rows by name.
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

from proxy.models import (  # noqa: E402
    Budget,
    Drift,
    Price,
    Route,
    RouteTarget,
    SavedView,
    Upstream,
    UpstreamPolicy,
)
from proxy.roles import AUDITOR, MEMBER, OWNER  # noqa: E402
from tests.fakes.gateway import REPOSITORY, Gateway  # noqa: E402
from tests.proxy.admin import cast  # noqa: E402

PASSWORD = "a long enough password"
CLERK = [
    f"{verb}_{model}"
    for model in ("team", "apikey", "route", "routetarget", "budget", "price", "upstreampolicy")
    for verb in ("view", "add", "change", "delete")
]
"""Permissions to write, and none to see requests."""
PEOPLE = {
    "staff": ("olga", (), ()),
    "member": ("ben", (), (MEMBER,)),
    "auditor": ("aude", (), (AUDITOR,)),
    "clerk": ("carl", CLERK, ("team:platform",)),
    "lead": ("ada", ("delete_team", "delete_price"), (OWNER, "team:platform", "team:empty")),
    "owner": ("otto", ("delete_team", "delete_price"), (OWNER,)),
    "root": ("root", (), ()),
}
"""Role -> name, permissions, groups. Lead and owner may delete more than their group does."""


def fill(gateway: Gateway) -> Any:
    """Run this in a process of the gateway's own settings; what it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.house.write_company"],
        cwd=REPOSITORY,
        env={**os.environ, "BRIDGE_DATA_DIR": str(gateway.folder / "data"),
             "DJANGO_SETTINGS_MODULE": "bridge_project.settings"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def company() -> dict[str, object]:
    stored = make_password(PASSWORD)
    users = {role: cast.staff(name, *may, groups=groups) for role, (name, may, groups) in PEOPLE.items()}  # fmt: skip
    users["cleo"] = cast.staff("cleo", groups=(MEMBER, "team:research"))
    User.objects.filter(username="root").update(is_superuser=True)
    User.objects.update(password=stored)
    ben, cleo = users["member"], users["cleo"]
    keys = {
        "ci": cast.key("ci"),
        "ben_key": cast.key("ben", user=ben),
        "board": cast.key("board", scopes=["reports"]),
        "finance": cast.key("finance", scopes=["admin"]),
        "lab": cast.key("lab", of="research"),
        "cleo_key": cast.key("cleo", of="research", user=cleo),
        "ada_lab": cast.key("ada", of="research", user=users["lead"]),
    }
    teams = {name: cast.team(name) for name in ("platform", "research", "empty", "attic")}
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
        f"{name}_request": cast.record(key=keys[key][0], team=of, at=at + timedelta(seconds=n), closed=False, opening={"user": user})
        for n, (name, key, of, user) in enumerate((
            ("ci", "ci", "platform", ""), ("ben", "ben_key", "platform", "ben"),
            ("lab", "lab", "research", ""),
        ))
    }  # fmt: skip
    old = cast.record(at=now() - timedelta(days=400), key=keys["ci"][0])
    rows = {
        **users,
        **{name: key for name, (key, _) in keys.items()},
        **teams,
        **routes,
        **targets,
        **requests,
        "old_request": old,
        "vllm": upstream,
        "idle": idle,
        "price": Price.objects.create(model="m", since="2026-01-01", input=1, output=2),
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
    return {
        "password": PASSWORD,
        "secrets": {name: secret for name, (_, secret) in keys.items()},
        "ids": {name: row.pk for name, row in rows.items()},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(company()))
