"""Give a team a monthly budget and a first key over REST. A second run changes nothing.

usage: new_team.py TEAM USD

BRIDGE_URL is the gateway's address. BRIDGE_ADMIN_KEY is a key with the scope admin:
manage.py createkey --team default --name automation --scope admin
"""

import os
import sys

import httpx

team, usd = sys.argv[1:]
bridge = httpx.Client(
    base_url=f"{os.environ['BRIDGE_URL']}/api/v1/",
    headers={"x-api-key": os.environ["BRIDGE_ADMIN_KEY"]},
    timeout=60,
)


def find(path: str, **search: str) -> dict | None:
    """Return the first object of a list that the search finds."""
    found = bridge.get(path, params=search).raise_for_status().json()["data"]
    return found[0] if found else None


def create(path: str, **fields: object) -> dict:
    return bridge.post(path, json=fields).raise_for_status().json()


if bridge.get(f"teams/{team}/").status_code == httpx.codes.NOT_FOUND:
    create("teams/", name=team, retention_days=30)
if not find("budgets/", team=team, period="month"):
    create("budgets/", team=team, period="month", limit_usd=usd)
if find("keys/", team=team, name="first"):
    print(f"{team} has its key already")
else:
    key = create("keys/", team=team, name="first", limits={"rpm": 60})
    print(f"the key of {team}, shown only this once: {key['secret']}")
