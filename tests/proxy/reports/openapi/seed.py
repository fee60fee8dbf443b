"""Objects for the calls of one operation, so that no operation changes the objects of another."""

from datetime import timedelta

from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils.timezone import now

from proxy.ledger.webhooks import record_test_event
from proxy.models import (
    Budget,
    Export,
    ExportState,
    Pause,
    Route,
    SavedReport,
    Team,
    Upstream,
    Webhook,
)
from proxy.permissions.row_permissions import reader_of_key
from proxy.reports.exports import jobs
from tests.fakes.servers.served_client import TOKEN
from tests.proxy.admin import factories


def seed_ledger():
    """Create requests of all kinds, and what every operation uses; return the shared names."""
    ci, _ = factories.key("ci", user=factories.staff("ben"), limits={"rpm": 5})
    first = factories.record(key=ci, opening={"session_id": "s1"})
    factories.price()
    factories.record(key=ci, opening={"session_id": "s1", "agent_id": "a"})
    factories.record(key=ci, closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    factories.record(team="research", at=factories.NOON - timedelta(days=1), with_content=False)
    factories.record(key=ci, closed=False)
    Team.objects.filter(name="platform").update(member_keys={"count": 1_000_000})
    factories.team("research")
    route, _ = Route.objects.get_or_create(model="claude-*", team=None)
    for name in ("busy", "idle"):  # bodies refer to them
        upstream = Upstream.objects.create(name=name, dialect="chat", base_url="http://vllm/v1")
        route.targets.create(upstream=upstream, position=9)
    _webhook(1)
    idents = {
        "users": "user_ben",
        "workspaces": "wrkspc_platform",
        "api_keys": f"apikey_{ci.pk}",
    }
    return {"request_id": first.pk, "session_id": "s1", "side": "request", "ident": idents}


def seed_objects(shared, path, number=0):
    """Create the objects of one operation; return names for paths, keys by caller and cookies.

    ``path``: of the operation. ``number``: makes the names of the objects unique.
    """
    root = User.objects.create_superuser(f"root{number}", "root@example.com", None)
    root.groups.add(Group.objects.get_or_create(name="team:platform")[0])
    admin, secret = factories.key(f"finance{number}", scopes=["admin"])
    team = factories.team(f"spare{number}")
    url = "http://vllm/v1"
    upstream = Upstream.objects.create(name=f"own{number}", dialect="chat", base_url=url)
    route = Route.objects.create(model=f"claude-{number}-*")
    route.targets.create(upstream=Upstream.objects.get(name="busy"))
    has_webhook = "webhook" in path or "deliver" in path  # a gateway has at most 100 webhooks
    webhook = _webhook(100 + number) if has_webhook else Webhook.objects.get(pk=1)
    price = factories.price()
    price.model = f"m{number}"
    price.save()
    names = {
        "webhook_id": webhook.pk,
        "report": SavedReport.objects.create(name=f"r{number}", report="usage", team=team).name,
        "delivery_id": record_test_event(webhook).pk,
        "budget_id": f"budget_{Budget.objects.create(team=team, usd=10).pk}",
        "export_id": _finished_export(admin, number),
        "key_id": f"apikey_{factories.key(f'own{number}', user=root)[0].pk}",
        "team": factories.team(f"empty{number}").name,
        "user": factories.staff(f"zoe{number}").username,
        "route_id": route.pk,
        "upstream": upstream.name,
        "price_id": price.pk,
        "pause_id": Pause.objects.create(model=f"m{number}", message="later").pk,
    }
    secrets = {
        "admin": secret,
        "reports": factories.key(f"research-bot{number}", scopes=["reports"])[1],
        "messages": factories.key(f"cleo{number}", of="research")[1],
        "stranger": "sk-br-unknown",
    }
    client = Client()
    client.force_login(root)
    cookies = {"csrftoken": TOKEN} | {name: one.value for name, one in client.cookies.items()}
    return {"names": shared | names, "secrets": secrets, "cookies": cookies}


def _webhook(pk):
    webhook = Webhook(pk=pk, name=f"ops{pk}", url="https://hooks.example.com/x", enabled=False)
    webhook.give_secret()
    webhook.save()
    return webhook


def _finished_export(key, number):
    """Create a finished export of this key with its file."""
    reader = jobs.reader_as_json(reader_of_key(key))
    job = Export(pk=f"export_{number}", report="requests", format="csv", key=key, reader=reader)
    job.state, job.created, job.expires = ExportState.DONE, now(), now() + timedelta(days=1)
    job.save()
    path = jobs.file_path(job)
    path.parent.mkdir(exist_ok=True)
    path.write_text("id\r\nreq_1\r\n")
    return job.pk
