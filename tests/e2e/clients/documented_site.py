"""A running gateway with one object for each placeholder of a documented path."""

import json
import time
from typing import Any

import httpx

from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.prepared import ADMIN_PASSWORD

MESSAGE = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Hello"}],
}
TARGET = {"upstream": "idle", "model": "m"}
UPSTREAM = {"dialect": "chat", "base_url": "http://127.0.0.1:9/v1"}
PRICE = {"model": "m", "since": "2026-01-01", "input": "1", "output": "2"}
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/v1/exports/": {"report": "requests", "format": "csv"},
    "POST /api/v1/keys/": {"team": "default", "name": "second"},
    "PATCH /api/v1/keys/{key_id}/": {"expires_at": None},
    "POST /api/v1/teams/": {"name": "second"},
    "PATCH /api/v1/teams/{team}/": {"retention_days": 7},
    "POST /api/v1/users/": {"name": "second"},
    "PATCH /api/v1/users/{user}/": {"is_active": True},
    "POST /api/v1/models/": {"model": "second", "targets": [TARGET]},
    "PATCH /api/v1/models/{route_id}/": {"position": 2},
    "POST /api/v1/upstreams/": {"name": "second", **UPSTREAM},
    "PATCH /api/v1/upstreams/{upstream}/": {"enabled": False},
    "POST /api/v1/budgets/": {"team": "default", "limit_usd": "9"},
    "PATCH /api/v1/budgets/{budget_id}/": {"hard": False},
    "POST /api/v1/prices/": PRICE | {"model": "second"},
    "POST /api/v1/pauses/": {"model": "second", "message": "Back at noon."},
    "PATCH /api/v1/pauses/{pause_id}/": {"message": "Back at one."},
    "POST /api/v1/webhooks/": {"name": "second", "url": "http://127.0.0.1:9/"},
    "PATCH /api/v1/webhooks/{webhook_id}/": {"enabled": False},
    "POST /api/v1/webhooks/{webhook_id}/rotate/": {},
    "POST /api/v1/deliveries/{delivery_id}/redeliver/": {},
    "POST /api/v1/reports/": {"name": "second", "report": "usage"},
    "PATCH /api/v1/reports/{report}/": {"query": {"month": "last"}},
    "POST /api/v1/deliveries/": {"webhook_id": 1},
    "POST /api/v1/stop/": {"kind": "team", "name": "default"},
    "POST /api/v1/me/keys/": {"team": "default", "name": "laptop"},
    "POST /api/v1/me/keys/{key_id}/rotate/": {"overlap_h": 0},
}
OWN_KEYS = "/api/v1/me/keys/"
"""The keys of the signed-in user. A gateway key gets 403."""


class Site:
    """A running gateway with the sandbox and one object for each placeholder of a path."""

    def __init__(self, gateway: Gateway) -> None:
        scopes = [word for one in ("messages", "reports", "admin") for word in ("--scope", one)]
        output = gateway.manage(
            "createkey", "--team", "default", "--name", "all", *scopes, "--json"
        )
        self.gateway = gateway
        self._client = httpx.Client(base_url=gateway.url, timeout=90)
        self.root = sign_in(gateway.url)
        self.headers = {
            "key": {"x-api-key": json.loads(output)["key"]},
            "root": {"x-csrftoken": self.root.cookies["csrftoken"]},
            "anonymous": {},
        }
        self.until(200, "GET", "/v1/models")
        self.names = self._create_all()

    def send(self, by: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = self.headers[by] | {name.replace("_", "-"): text for name, text in headers.items()}
        if by == "root":
            return self.root.request(method, path, json=body, headers=sent)
        self._client.cookies.clear()
        return self._client.request(method, path, json=body, headers=sent)

    def close(self) -> None:
        self.root.close()
        self._client.close()

    def until(self, status: int, method: str, path: str) -> Any:
        deadline = time.monotonic() + 90
        while (answer := self.send("key", method, path)).status_code != status:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        return answer.json()

    def message(self, session: str) -> str:
        """Send a message in this session and wait for its row; return the request id."""
        answer = self.send("key", "POST", "/v1/messages", MESSAGE, x_claude_code_session_id=session)
        assert answer.status_code == 200, answer.text
        request_id: str = answer.headers["request-id"]
        self.until(200, "GET", f"/api/v1/requests/{request_id}/")
        return request_id

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        answer = self.send("root", "POST", f"/api/v1/{kind}/", fields)
        assert answer.status_code in {201, 202}, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def _join_team(self, team: str) -> None:
        """Make the signed-in user a member of the team, and let its members make keys."""
        group = {"name": f"team:{team}"}
        answer = self.root.post("/admin/auth/group/add/", data=group, headers=self.headers["root"])
        assert answer.status_code == 302, answer.text
        changes = {
            f"teams/{team}": {"member_keys": {"count": 9}},
            "users/admin": {"groups": [group["name"]]},
        }
        for path, body in changes.items():
            answer = self.send("root", "PATCH", f"/api/v1/{path}/", body)
            assert answer.status_code == 200, answer.text

    def names_for(self, method: str, path: str) -> dict[str, Any]:
        """Return the values of the path's placeholders; DELETE and rotate get extra objects."""
        if not path.startswith(OWN_KEYS):
            return self.deletable if method == "DELETE" else self.names
        own = {"DELETE": "deletable", "POST": "rotated"}.get(method, "permanent")
        return {"key_id": self.own_keys[own]}

    def _create_objects(self, name: str) -> dict[str, Any]:
        upstream = self.make("upstreams", name=name, **UPSTREAM)
        team = self.make("teams", name=name)
        return {
            "upstream": upstream["name"],
            "team": team["name"],
            "user": self.make("users", name=name)["name"],
            "key_id": self.make("keys", team="default", name=name)["id"],
            "price_id": self.make("prices", **PRICE | {"model": name})["id"],
            "pause_id": self.make("pauses", model=f"paused-{name}", message="Soon.")["id"],
            "report": self.make("reports", name=name, report="usage", team="default")["name"],
            "webhook_id": self.make("webhooks", name=name, url="http://127.0.0.1:9/")["id"],
        }

    def _create_all(self) -> dict[str, Any]:
        names = self._create_objects("idle")
        self._join_team("default")
        self.own_keys = {
            name: self.make("me/keys", team="default", name=f"own-{name}")["id"]
            for name in ("permanent", "deletable", "rotated")
        }
        names["route_id"] = self.make("models", model="m", targets=[TARGET])["id"]
        self.deletable = self._create_objects("deletable")
        self.deletable["route_id"] = self.make("models", model="deletable", targets=[TARGET])["id"]
        report = BODIES["POST /api/v1/exports/"]
        export = self.send("key", "POST", "/api/v1/exports/", report).json()["id"]
        while self.send("key", "GET", f"/api/v1/exports/{export}/").json()["state"] != "done":
            time.sleep(0.1)
        names["delivery_id"] = self.make("deliveries", webhook_id=names["webhook_id"])["id"]
        budget = self.make("budgets", team="default", limit_usd="9")
        self.deletable["budget_id"] = self.make("budgets", team="default", limit_usd="8")["id"]
        return names | {
            "request_id": self.message("s1"),
            "session_id": "s1",
            "side": "request",
            "export_id": export,
            "budget_id": budget["id"],
            "api_keys": names["key_id"],
            "users": "user_idle",
            "workspaces": "wrkspc_default",
        }


def sign_in(url: str) -> httpx.Client:
    """Sign in as the superuser of the first start."""
    client = httpx.Client(base_url=url, timeout=90)
    client.get("/admin/login/")
    form = {"username": "admin", "password": ADMIN_PASSWORD, "next": "/admin/"}
    token = client.cookies["csrftoken"]
    answer = client.post("/admin/login/", data=form | {"csrfmiddlewaretoken": token})
    assert answer.status_code == 302, answer.text
    return client
