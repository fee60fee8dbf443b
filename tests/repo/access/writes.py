"""List every write that a user or a key can send: URL pattern -> target -> request.

A target names the owner of the row or value: ``own`` is platform, which Ada leads; ``foreign`` is
research; ``company`` applies to every team. ``a to b`` moves a row from a to b.
Bodies of admin pages are forms, bodies of the API are JSON; ``{name}`` stands for the id of the
row of that name in ``write_company``.
"""

from typing import Any, NamedTuple

from .write_company import PASSWORD
from .write_forms import budget_form, key_form, route_form, team_form, user_form


class Write(NamedTuple):
    method: str
    path: str
    body: Any = None


PAUSE = {"model": "claude-old", "message": "back at noon"}
POLICY = {"kind": "beta", "name": "new", "action": "drop", "upstream": "", "position": 0}
PRICE = {"upstream": "", "model": "new", "since": "2026-01-01", "input": "1", "output": "2",
         "cache_read": "", "cache_write_5m": "", "cache_write_1h": "", "source": ""}  # fmt: skip
UPSTREAM = {"name": "new", "dialect": "chat", "base_url": "http://127.0.0.1:9", "profile": "generic",
            "when_client_leaves": "abort", "connection_reuse": "shared", "connection": "{}", "enabled": "on"}  # fmt: skip
WEBHOOK = {"name": "new", "url": "http://127.0.0.1:9/", "team": "", "enabled": ""}
WEBHOOK_ROWS = {"own": "platform", "foreign": "research", "company": "common"}
REPORT = {"name": "new", "report": "usage", "query": "month = last", "team": ""}
REPORT_ROWS = {
    "own": ("platform", {"team": "{platform}"}),
    "own_to_foreign": ("platform", {"team": "{research}"}),
    "foreign": ("research", {"team": "{research}"}),
    "of_the_lead": ("ada", {}),
    "foreign_member": ("cleo", {}),
}
SURE = {"post": "yes"}


def admin(
    model: str, adds: dict[str, Any], changes: dict[str, Any], deletes: dict[str, str]
) -> Any:
    """Return the writes of a model's three forms and of the bulk action on its list."""
    base, some = f"admin/{model}/", next(iter(deletes.values()), "1")
    bulk = {"action": "delete_selected", "_selected_action": some, "index": 0, **SURE}
    return {
        base: {"bulk": Write("POST", base, bulk)},
        f"{base}add/": {whose: Write("POST", f"{base}add/", body) for whose, body in adds.items()},
        f"{base}<path:object_id>/change/": {
            whose: Write("POST", f"{base}{row}/change/", body)
            for whose, (row, body) in changes.items()
        },
        f"{base}<path:object_id>/delete/": {
            whose: Write("POST", f"{base}{row}/delete/", SURE) for whose, row in deletes.items()
        },
    }


def api(route: str, one: str, adds: Any, changes: Any, deletes: Any, *, kind: str = "") -> Any:
    """Return the writes of an API list and of one of its rows, whose ids start with ``kind``."""
    base = f"api/v1/{route}"
    return {
        base: {whose: Write("POST", base, body) for whose, body in adds.items()},
        f"{base}/{one}": {
            **{f"patch_{whose}": Write("PATCH", f"{base}/{kind}{row}", body) for whose, (row, body) in changes.items()},
            **{f"delete_{whose}": Write("DELETE", f"{base}/{kind}{row}") for whose, row in deletes.items()},
        },
    }  # fmt: skip


def only(pattern: str, **paths: Any) -> Any:
    """Return the writes of a single page."""
    return {pattern: {whose: Write("POST", *sent) for whose, sent in paths.items()}}


STOPS = {
    "own": {"kind": "team", "name": "platform"},
    "own_key": {"kind": "key", "name": "platform/ci"},
    "foreign": {"kind": "team", "name": "research"},
    "foreign_key": {"kind": "key", "name": "research/lab"},
    "company": {"kind": "upstream", "name": "vllm"},
}
KEY_ADDS = {
    "own": ("platform", {}),
    "own_member": ("platform", {"user": "ben"}),
    "own_reports": ("platform", {"scopes": ["reports"]}),
    "own_admin": ("platform", {"scopes": ["messages", "admin"]}),
    "foreign": ("research", {}),
    "foreign_member": ("platform", {"user": "cleo"}),
}
KEY_ROWS = {"own": "{ci}", "own_member": "{ben_key}", "own_admin": "{finance}", "foreign": "{lab}",
            "foreign_but_mine": "{ada_lab}"}  # fmt: skip
ROUTE = {"targets": [{"upstream": "vllm"}]}
INVITED = {"username": "dora", "role": "member", "team": "platform", "with_password": "",
           "usd": "5", "period": "month"}  # fmt: skip
INVITATIONS = {
    "own": {},
    "own_as_lead": {"role": "owner"},
    "own_taken_name": {"username": "cleo"},
    "foreign": {"team": "research"},
}
OWN_KEYS = {"own": {}, "own_reports": {"scopes": ["reports"]}, "foreign": {"team": "research"}}
PEOPLE_IDS = {"ben": "{member}", "cleo": "{cleo}"}


def key_body(team: str, fields: dict[str, Any]) -> dict[str, Any]:
    named = {name: PEOPLE_IDS.get(value, value) if name == "user" else value for name, value in fields.items()}  # fmt: skip
    return key_form(f"{{{team}}}", **named)


WRITES: dict[str, dict[str, Write]] = {
    **admin(
        "proxy/apikey",
        {whose: key_body(*data) for whose, data in KEY_ADDS.items()},
        {
            "own": ("{ci}", key_form("{platform}", "ci", limits_0="9")),
            "own_member": ("{ben_key}", key_form("{platform}", "ben", user="{member}", limits_0="9")),
            "own_admin": ("{finance}", key_form("{platform}", "finance", scopes=["admin"], limits_0="9")),
            "own_to_admin": ("{ci}", key_form("{platform}", "ci", scopes=["messages", "admin"])),
            "own_to_foreign": ("{ci}", key_form("{research}", "ci")),
            "own_to_foreign_member": ("{ci}", key_form("{platform}", "ci", user="{cleo}")),
            "foreign": ("{lab}", key_form("{research}", "lab", limits_0="9")),
            "foreign_to_own": ("{lab}", key_form("{platform}", "lab")),
            "foreign_but_mine": ("{ada_lab}", key_form("{platform}", "ada", user="{lead}")),
        },
        {"own": "{ci}"},
    ),
    **only("admin/proxy/apikey/<int:key_id>/rotate/", **{whose: (f"admin/proxy/apikey/{row}/rotate/", {"overlap_h": 1}) for whose, row in KEY_ROWS.items()}),
    **only("admin/proxy/apikey/<int:key_id>/revoke/", **{whose: (f"admin/proxy/apikey/{row}/revoke/", {}) for whose, row in KEY_ROWS.items()}),
    **only("admin/me/keys/add/", **{whose: ("admin/me/keys/add/", {"team": "platform", "name": "new", "scopes": ["messages"], **fields}) for whose, fields in OWN_KEYS.items()}),
    **only("admin/people/invite/", **{whose: ("admin/people/invite/", {**INVITED, **fields}) for whose, fields in INVITATIONS.items()}),
    "api/v1/me/keys": {whose: Write("POST", "api/v1/me/keys", {"team": "platform", "name": "new", **fields}) for whose, fields in OWN_KEYS.items()},
    "api/v1/me/keys/<str:key_id>": {f"delete_{whose}": Write("DELETE", f"api/v1/me/keys/apikey_{row}") for whose, row in KEY_ROWS.items()},
    "api/v1/me/keys/<str:key_id>/rotate": {whose: Write("POST", f"api/v1/me/keys/apikey_{row}/rotate", {}) for whose, row in KEY_ROWS.items()},
    **admin(
        "proxy/budget",
        {
            "own": budget_form(team="{platform}"),
            "own_key": budget_form(key="{ci}"),
            "own_member": budget_form(user="{member}"),
            "foreign": budget_form(team="{research}"),
            "foreign_key": budget_form(key="{lab}"),
            "foreign_member": budget_form(user="{cleo}"),
        },
        {
            "own": ("{team_budget}", budget_form(team="{platform}")),
            "own_key": ("{key_budget}", budget_form(key="{ci}")),
            "own_member": ("{ben_budget}", budget_form(user="{member}")),
            "of_the_lead": ("{ada_budget}", budget_form(user="{lead}")),
            "own_to_foreign": ("{team_budget}", budget_form(team="{research}")),
            "own_to_foreign_key": ("{key_budget}", budget_form(key="{lab}")),
            "foreign": ("{lab_team_budget}", budget_form(team="{research}")),
            "foreign_key": ("{lab_budget}", budget_form(key="{lab}")),
        },
        {"own": "{team_budget}", "own_key": "{key_budget}", "own_member": "{ben_budget}",
         "foreign": "{lab_team_budget}", "foreign_key": "{lab_budget}"},
    ),
    **admin(
        "proxy/route",
        {"own": route_form("{platform}"), "foreign": route_form("{research}"), "company": route_form("")},
        {
            "own": ("{platform_route}", route_form("{platform}", "platform-*", "platform")),
            "own_to_foreign": ("{platform_route}", route_form("{research}", "platform-*", "platform")),
            "own_to_company": ("{platform_route}", route_form("", "platform-*", "platform")),
            "foreign": ("{research_route}", route_form("{research}", "research-*", "research")),
            "foreign_to_own": ("{research_route}", route_form("{platform}", "research-*", "research")),
            "company": ("{common_route}", route_form("", "common-*", "common")),
            "company_to_own": ("{common_route}", route_form("{platform}", "common-*", "common")),
        },
        {"own": "{platform_route}", "foreign": "{research_route}", "company": "{common_route}"},
    ),
    **admin(
        "proxy/team",
        {"company": team_form("new")},
        {
            "own": ("{platform}", team_form("platform")),
            "own_renamed": ("{platform}", team_form("former")),
            "own_member_reports": ("{platform}", team_form("platform", member_keys_0=9, member_keys_2="messages,reports")),
            "foreign": ("{research}", team_form("research")),
        },
        {"own": "{empty}", "foreign": "{attic}"},
    ),
    **admin("proxy/price", {"company": PRICE}, {"company": ("{price}", PRICE)}, {"company": "{price}"}),
    **admin("proxy/pause", {"company": PAUSE}, {"company": ("{pause}", PAUSE)}, {"company": "{pause}"}),
    **admin("proxy/upstreampolicy", {"company": POLICY}, {"company": ("{policy}", POLICY)}, {"company": "{policy}"}),
    **admin(
        "proxy/upstream",
        {"company": UPSTREAM},
        {"company": ("{idle}", UPSTREAM | {"base_url": "http://127.0.0.1:10"})},
        {"company": "{idle}"},
    ),
    **only("admin/proxy/upstream/<int:upstream_id>/forget/", company=("admin/proxy/upstream/{vllm}/forget/", {})),
    **only("admin/proxy/upstream/<int:upstream_id>/test/", company=("admin/proxy/upstream/{vllm}/test/", {"model": "m"})),
    **admin(
        "auth/user",
        {"company": {"username": "new", "usable_password": "false"}},
        {
            "own_member": ("{member}", user_form("ben", is_superuser="on")),
            "foreign_member": ("{cleo}", user_form("cleo", is_superuser="on")),
            "of_the_lead": ("{lead}", user_form("ada", is_superuser="on")),
        },
        {"own_member": "{staff}", "foreign_member": "{cleo}"},
    ),
    **only("admin/auth/user/<id>/password/", **{
        whose: (f"admin/auth/user/{row}/password/", {"password1": PASSWORD[::-1], "password2": PASSWORD[::-1], "usable_password": "true"})
        for whose, row in {"own_member": "{member}", "of_root": "{root}"}.items()
    }),
    **admin(
        "auth/group",
        {"company": {"name": "team:research2"}},
        {"own": ("{lead_group}", {"name": "team:research2"}), "company": ("{member_group}", {"name": "m"})},
        {"own": "{lead_group}", "company": "{member_group}"},
    ),
    **admin("proxy/exchange", {"own": {}}, {"own": ("{old_request}", {})}, {"own": "{old_request}"}),
    **admin("proxy/auditentry", {"company": {}}, {"company": ("{audit}", {})}, {"company": "{audit}"}),
    **admin("proxy/drift", {"company": {}}, {"company": ("{drift}", {})}, {"company": "{drift}"}),
    **only("admin/proxy/exchange/views/", mine=("admin/proxy/exchange/views/", {"name": "other", "query": "q=a"})),
    **only("admin/proxy/exchange/views/<int:view_id>/delete/", foreign=("admin/proxy/exchange/views/{cleo_view}/delete/", {}),
           of_the_lead=("admin/proxy/exchange/views/{lead_view}/delete/", {})),
    **only("admin/live/<str:exchange_id>/stop/", **{
        whose: (f"admin/live/{row}/stop/", {})
        for whose, row in {"own": "{ci_request}", "own_member": "{ben_request}", "foreign": "{lab_request}"}.items()
    }),
    **only("admin/live/stop/", **{whose: ("admin/live/stop/", body) for whose, body in STOPS.items()}),
    "api/v1/stop": {whose: Write("POST", "api/v1/stop", body) for whose, body in STOPS.items()},
    **admin(
        "proxy/webhook",
        {"own": WEBHOOK | {"team": "{platform}"}, "company": WEBHOOK},
        {whose: (f"{{{of}_webhook}}", WEBHOOK) for whose, of in WEBHOOK_ROWS.items()},
        {whose: f"{{{of}_webhook}}" for whose, of in WEBHOOK_ROWS.items()},
    ),
    **admin(
        "proxy/savedreport",
        {"mine": REPORT, "own": REPORT | {"team": "{platform}"}, "foreign": REPORT | {"team": "{research}"}},
        {whose: (f"{{{of}_report}}", REPORT | team) for whose, (of, team) in REPORT_ROWS.items()},
        {whose: f"{{{of}_report}}" for whose, (of, _) in REPORT_ROWS.items()},
    ),
    **admin("proxy/webhookdelivery", {"own": {}}, {"own": ("{platform_delivery}", {})}, {"own": "{platform_delivery}"}),
    **only("admin/proxy/webhook/<int:webhook_id>/rotate/", **{
        whose: (f"admin/proxy/webhook/{{{of}_webhook}}/rotate/", {}) for whose, of in WEBHOOK_ROWS.items()
    }),
    **only("admin/proxy/webhook/<int:webhook_id>/test/", **{
        whose: (f"admin/proxy/webhook/{{{of}_webhook}}/test/", {}) for whose, of in WEBHOOK_ROWS.items()
    }),
    **only("admin/proxy/webhookdelivery/<int:delivery_id>/send/", **{
        whose: (f"admin/proxy/webhookdelivery/{{{of}_delivery}}/send/", {}) for whose, of in WEBHOOK_ROWS.items()
    }),
    **only("admin/storage/purge/", company=("admin/storage/purge/", {})),
    **only("admin/password_change/", mine=("admin/password_change/", {
        "old_password": PASSWORD, "new_password1": PASSWORD[::-1], "new_password2": PASSWORD[::-1],
    })),
    **api(
        "keys", "<str:key_id>",
        {whose: {"team": team, "name": "new", **fields} for whose, (team, fields) in KEY_ADDS.items()},
        {
            "own": ("{ci}", {"limits": {"rpm": 9}}),
            "own_member": ("{ben_key}", {"limits": {"rpm": 9}}),
            "own_admin": ("{finance}", {"limits": {"rpm": 9}}),
            "own_to_admin": ("{ci}", {"scopes": ["messages", "admin"]}),
            "own_to_foreign": ("{ci}", {"team": "research"}),
            "own_to_foreign_member": ("{ci}", {"user": "cleo"}),
            "foreign": ("{lab}", {"limits": {"rpm": 9}}),
            "foreign_but_mine": ("{ada_lab}", {"team": "platform"}),
        },
        KEY_ROWS,
        kind="apikey_",
    ),
    **api(
        "teams", "<str:team>", {"company": {"name": "new"}},
        {
            "own": ("platform", {"retention_days": 7}),
            "own_renamed": ("platform", {"name": "former"}),
            "own_member_reports": ("platform", {"member_keys": {"count": 9, "scopes": ["reports"]}}),
            "foreign": ("research", {"retention_days": 7}),
        },
        {"own": "empty", "foreign": "attic"},
    ),
    **api(
        "users", "<str:user>", {"company": {"name": "new"}},
        {
            "own_member": ("ben", {"is_superuser": True}),
            "foreign_member": ("cleo", {"groups": ["owner"]}),
            "of_the_lead": ("ada", {"is_superuser": True}),
        },
        {"own_member": "ben", "foreign_member": "cleo"},
    ),
    **api(
        "models", "<int:route_id>",
        {
            "own": {"model": "new-*", "team": "platform", **ROUTE},
            "foreign": {"model": "new-*", "team": "research", **ROUTE},
            "company": {"model": "new-*", **ROUTE},
        },
        {
            "own": ("{platform_route}", {"position": 5}),
            "own_to_foreign": ("{platform_route}", {"team": "research"}),
            "own_to_company": ("{platform_route}", {"team": None}),
            "foreign": ("{research_route}", {"position": 5}),
            "company": ("{common_route}", {"position": 5}),
        },
        {"own": "{platform_route}", "foreign": "{research_route}", "company": "{common_route}"},
    ),
    **api(
        "upstreams", "<str:upstream>",
        {"company": {"name": "new", "dialect": "chat", "base_url": "http://127.0.0.1:9"}},
        {"company": ("idle", {"base_url": "http://127.0.0.1:10"})}, {"company": "idle"},
    ),
    **api(
        "prices", "<int:price_id>",
        {"company": {"model": "new", "since": "2026-01-01", "input": "1", "output": "2"}},
        {"company": ("{price}", {"input": "9"})}, {"company": "{price}"},
    ),
    **api(
        "pauses", "<int:pause_id>",
        {"company": PAUSE}, {"company": ("{pause}", {"message": "back at one"})}, {"company": "{pause}"},
    ),
    **api(
        "budgets", "<str:budget_id>",
        {
            "own": {"team": "platform", "limit_usd": "77"},
            "own_member": {"user": "ben", "limit_usd": "77"},
            "foreign": {"team": "research", "limit_usd": "77"},
        },
        {
            "own": ("{team_budget}", {"limit_usd": "77"}),
            "own_key": ("{key_budget}", {"limit_usd": "77"}),
            "own_member": ("{ben_budget}", {"limit_usd": "77"}),
            "own_to_foreign": ("{team_budget}", {"team": "research"}),
            "foreign": ("{lab_team_budget}", {"limit_usd": "77"}),
        },
        {"own": "{team_budget}", "own_member": "{ben_budget}", "foreign": "{lab_team_budget}"},
        kind="budget_",
    ),
    **api(
        "webhooks", "<int:webhook_id>",
        {"own": {"name": "new", "url": "http://127.0.0.1:9/", "team": "platform", "enabled": False},
         "company": {"name": "new", "url": "http://127.0.0.1:9/", "enabled": False}},
        {whose: (f"{{{of}_webhook}}", {"url": "http://127.0.0.1:10/"}) for whose, of in WEBHOOK_ROWS.items()},
        {whose: f"{{{of}_webhook}}" for whose, of in WEBHOOK_ROWS.items()},
    ),
    "api/v1/webhooks/<int:webhook_id>/rotate": {
        whose: Write("POST", f"api/v1/webhooks/{{{of}_webhook}}/rotate", {}) for whose, of in WEBHOOK_ROWS.items()
    },
    "api/v1/deliveries": {
        whose: Write("POST", "api/v1/deliveries", {"webhook_id": f"{{{of}_webhook}}"}) for whose, of in WEBHOOK_ROWS.items()
    },
    "api/v1/deliveries/<int:delivery_id>/redeliver": {
        whose: Write("POST", f"api/v1/deliveries/{{{of}_delivery}}/redeliver", {}) for whose, of in WEBHOOK_ROWS.items()
    },
    **api(
        "reports", "<str:report>",
        {
            "mine": {"name": "new", "report": "usage"},
            "own": {"name": "new", "report": "usage", "team": "platform"},
            "foreign": {"name": "new", "report": "usage", "team": "research"},
        },
        {
            "own": ("platform", {"query": {"month": "last"}}),
            "own_to_foreign": ("platform", {"team": "research"}),
            "foreign": ("research", {"query": {"month": "last"}}),
            "of_the_lead": ("ada", {"query": {"month": "last"}}),
            "foreign_member": ("cleo", {"query": {"month": "last"}}),
        },
        {whose: of for whose, (of, _) in REPORT_ROWS.items()},
    ),
    "api/v1/exports": {"mine": Write("POST", "api/v1/exports", {
        "report": "requests", "format": "csv", "query": {"from": "2026-11-01", "to": "2026-11-02"},
    })},
}  # fmt: skip
WRITES["admin/proxy/upstreampolicy/"]["company"] = Write(  # this list is changed on the list itself
    "POST",
    "admin/proxy/upstreampolicy/",
    {"_save": "Save", "form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": "{policy}",
     "form-0-action": "refuse", "form-0-position": 9},
)  # fmt: skip
