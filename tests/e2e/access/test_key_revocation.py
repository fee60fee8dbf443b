"""Validity of keys from bridge.toml: without a secret, rotated, revoked, with a new secret.

All tests of this file share one gateway with its bridge.toml; each test has its own key.
"""

import contextlib
import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.key_requests import shell, statuses, until_status
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.waiting import until

NAMES = (
    "leaked",
    "stays",
    "form",
    "rest",
    "reissued",
    "rotated",
    "twice",
    "old",
    "gone",
    "dropped",
)
SECRETS = {f"BRIDGE_KEY_{name.upper()}": f"sk-br-{name:x<10}" + "k" * 30 for name in NAMES}


def key_table(name: str, secret: str = "") -> str:
    line = f'secret = {{ env = "{secret}" }}\n' if secret else ""
    return f'\n[[keys]]\nteam = "red"\nname = "{name}"\nscopes = ["messages", "reports"]\n{line}'


KEYS = "".join(key_table(name, f"BRIDGE_KEY_{name.upper()}") for name in NAMES)
RED = f"""
[[routes]]
model = "m"
targets = [{{ upstream = "chat" }}]

[[teams]]
name = "red"
{key_table("ci")}{KEYS}"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    upstream = {"dialect": "chat", "base_url": "http://127.0.0.1:9/v1"}
    new_gateway = Gateway(
        tmp_path_factory.mktemp("revocation"),
        config=toml_for({"chat": upstream}, RED),
        environment=SECRETS,
    )
    with new_gateway as running:
        yield running


@pytest.fixture(scope="module")
def browser(gateway: Gateway) -> Iterator[httpx.Client]:
    """An HTTP client that is signed in to the admin."""
    with httpx.Client(base_url=gateway.url, timeout=90) as client:
        until(lambda: sign_in(client), "the admin user was not created")
        yield client


def sign_in(client: httpx.Client) -> bool:
    form = {"username": "admin", "password": ADMIN_PASSWORD, **token(client, "/admin/login/")}
    return client.post("/admin/login/", data=form).status_code == 302


def token(client: httpx.Client, path: str) -> dict[str, str]:
    (found, *_) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get(path).text)
    return {"csrfmiddlewaretoken": found}


def secret_of(name: str) -> str:
    return SECRETS[f"BRIDGE_KEY_{name.upper()}"]


def revoke(gateway: Gateway, name: str) -> None:
    gateway.manage("revokekey", "--team", "red", "--name", name)


def rotate(gateway: Gateway, name: str, *more: str) -> str:
    output = gateway.manage(
        "createkey", "--team", "red", "--name", name, "--rotate", "--json", *more
    )
    secret: str = json.loads(output)["key"]
    return secret


def file(gateway: Gateway) -> str:
    return str(gateway.folder / "bridge.toml")


def plan_line(gateway: Gateway, name: str) -> str:
    """Return the line of a dry run about this key."""
    lines = gateway.manage("applyconfig", file(gateway), "--dry-run").splitlines()
    (line,) = [line for line in lines if f"key red/{name}:" in line]
    return line


def applied_lines(gateway: Gateway, name: str) -> str:
    """Apply the file; return the lines about this key."""
    lines = gateway.manage("applyconfig", file(gateway)).splitlines()
    return "\n".join(line for line in lines if f"key red/{name}:" in line)


def row_id(gateway: Gateway, name: str) -> int:
    answer = gateway.request("GET", f"/api/v1/keys/?name={name}")
    (key,) = json.loads(answer.body)["data"]
    return int(key["id"].removeprefix("apikey_"))


def audit_lines(gateway: Gateway, key_id: int) -> list[str]:
    answer = gateway.request("GET", f"/api/v1/audit/?object_kind=key&object_id={key_id}")
    entries = json.loads(answer.body)["data"]
    return [f"{each['action']} by {each['actor_kind']} {each['command']}" for each in entries]


# Keys without a secret


@pytest.mark.parametrize("text", ["not made yet: red/ci", "", "None", "null"])
def test_key_without_a_secret_gives_no_access(gateway: Gateway, text: str):
    assert statuses(gateway, text) == {401}
    body = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'
    headers_to_send = {"x-api-key": text, "content-type": "application/json"}
    assert (
        gateway.request("POST", "/v1/messages", body, headers_to_send, authorized=False).status
        == 401
    )


OLD_ROW = """
from proxy.models import ApiKey, Team
from proxy.secrets import digest_of
ApiKey.objects.create(team=Team.objects.get(name="red"), name="written-before", prefix="",
                      scopes=["messages", "admin"], digest=digest_of("not made yet: red/old"))
"""


def test_row_with_a_guessable_digest_gives_no_access(gateway: Gateway):
    """An earlier version wrote such rows; a restored backup or an older node may contain one."""
    shell(gateway, OLD_ROW)
    rotated = rotate(gateway, "old")

    until_status(gateway, rotated, 200)  # so the gateway has read the row too
    assert statuses(gateway, "not made yet: red/old") == {401}


def test_doctor_reports_a_key_without_a_secret_with_a_hint(gateway: Gateway):
    found = json.loads(gateway.run_command("doctor", "--no-stream", "--json").stdout)

    (finding,) = [one for one in found if one["subject"] == "key red/ci"]
    assert finding["ok"] is False
    assert "has no secret" in finding["says"]
    assert "createkey --team red --name ci" in finding["hint"]


def test_admin_and_api_mark_a_key_without_a_secret(gateway: Gateway, browser: httpx.Client):
    page = browser.get("/admin/proxy/apikey/").text
    rows = {row["name"]: row for row in browser.get("/api/v1/keys/?limit=100").json()["data"]}

    assert "no secret" in page
    assert "createkey --team red --name ci" in page
    assert (rows["ci"]["has_secret"], rows["leaked"]["has_secret"]) == (False, True)


# The gateway and the reports use the same key check


def test_revoking_a_rotated_key_ends_its_old_secret_everywhere(gateway: Gateway):
    old, new = secret_of("twice"), rotate(gateway, "twice")
    until_status(gateway, new, 200)
    assert statuses(gateway, old) == {200}

    revoke(gateway, "twice")

    for secret in (old, new):
        until_status(gateway, secret, 401)


# Rotation of a key that bridge.toml declares


def test_gateway_restarts_after_rotation_of_a_key_of_the_file(gateway: Gateway):
    old, new = secret_of("rotated"), rotate(gateway, "rotated")

    line = plan_line(gateway, "rotated")
    gateway.end_process()
    gateway.start()

    assert line.startswith("= key red/rotated: ")
    assert "the file still has the secret that was rotated" in line
    assert statuses(gateway, old) == statuses(gateway, new) == {200}
    assert gateway.log.count("= key red/rotated: the file still has the secret") == 1
    assert new not in gateway.log


def test_old_secret_stays_invalid_after_the_overlap(gateway: Gateway):
    new = rotate(gateway, "stays", "--overlap-h", "0")
    until_status(gateway, new, 200)

    gateway.manage("applyconfig", file(gateway))

    assert statuses(gateway, new) == {200}
    until_status(gateway, secret_of("stays"), 401)


def test_two_keys_with_one_secret_are_rejected(gateway: Gateway):
    duplicate = gateway.folder / "twin.toml"
    text = (gateway.folder / "bridge.toml").read_text(encoding="utf-8")
    duplicate.write_text(text + key_table("mallory", "BRIDGE_KEY_LEAKED"), encoding="utf-8")

    rejected_command = gateway.run_command("applyconfig", str(duplicate), "--dry-run")

    assert rejected_command.returncode == 2
    assert "key red/leaked has the same secret" in rejected_command.stderr


# A revocation overrides the file


def test_command_revokes_a_key_of_the_file_permanently(gateway: Gateway):
    leaked_secret = secret_of("leaked")
    assert statuses(gateway, leaked_secret) == {200}

    output = gateway.manage("revokekey", "red/leaked", "--json")

    until_status(gateway, leaked_secret, 401)
    answer = json.loads(output)
    assert (answer["team"], answer["name"], answer["changed"]) == ("red", "leaked", True)
    assert re.match(
        r"= key red/leaked: revoked .*: stays revoked", applied_lines(gateway, "leaked")
    )
    until_status(gateway, rotate(gateway, "old"), 200)  # the gateway has read the applied file
    assert statuses(gateway, leaked_secret) == {401}
    assert any(
        line == "revoke by command revokekey"
        for line in audit_lines(gateway, row_id(gateway, "leaked"))
    )


def test_revokekey_exit_codes(gateway: Gateway):
    first = gateway.run_command("revokekey", "--team", "red", "--name", "gone")
    again = gateway.run_command("revokekey", "red/gone")
    unknown = gateway.run_command("revokekey", "red/gnoe")
    incomplete = gateway.run_command("revokekey", "--team", "red")

    assert (first.returncode, again.returncode) == (0, 1)
    assert "was revoked before" in again.stdout + again.stderr
    assert (unknown.returncode, incomplete.returncode) == (2, 2)
    assert "did you mean 'gone'" in unknown.stderr


def test_admin_revokes_a_key_of_the_file(gateway: Gateway, browser: httpx.Client):
    url = f"/admin/proxy/apikey/{row_id(gateway, 'form')}"
    assert f"{url}/revoke/" in browser.get(f"{url}/change/").text

    answer = browser.post(f"{url}/revoke/", data=token(browser, f"{url}/revoke/"))

    assert answer.status_code == 302
    until_status(gateway, secret_of("form"), 401)
    assert "stays revoked" in applied_lines(gateway, "form")
    assert "revoke by user " in audit_lines(gateway, row_id(gateway, "form"))


def test_api_revokes_a_key_of_the_file(gateway: Gateway, browser: httpx.Client):
    url = f"/api/v1/keys/apikey_{row_id(gateway, 'rest')}/"

    answer = browser.delete(url, headers=write_headers(browser))

    assert answer.status_code == 200, answer.text
    assert answer.json()["revoked_at"]
    until_status(gateway, secret_of("rest"), 401)
    assert "stays revoked" in applied_lines(gateway, "rest")


def write_headers(browser: httpx.Client) -> dict[str, str]:
    return {"x-csrftoken": browser.cookies["csrftoken"], "referer": str(browser.base_url)}


def test_other_writes_to_objects_of_the_file_are_rejected(gateway: Gateway, browser: httpx.Client):
    number = row_id(gateway, "tests")
    form = f"/admin/proxy/apikey/{number}"
    csrf = token(browser, "/admin/proxy/team/add/")

    pages = [
        browser.post(f"{form}/change/", data={**csrf, "name": "mine"}),
        browser.post(f"{form}/rotate/", data={**csrf, "overlap_h": "0"}),
        browser.post("/admin/proxy/team/1/change/", data={**csrf, "name": "mine"}),
        browser.post("/admin/proxy/team/1/delete/", data={**csrf, "post": "yes"}),
    ]
    answer = browser.patch(
        f"/api/v1/keys/apikey_{number}/", json={"name": "mine"}, headers=write_headers(browser)
    )

    assert [page.status_code for page in pages] == [403] * len(pages)
    assert ["managed by bridge.toml" in page.text for page in pages] == [True] * len(pages)
    assert answer.status_code == 409
    assert "managed by bridge.toml" in answer.json()["error"]["message"]


def test_new_secret_in_the_file_reactivates_a_revoked_key_but_not_its_old_secret(
    gateway: Gateway,
):
    leaked_secret, new = secret_of("reissued"), "sk-br-" + "new1" * 12
    revoke(gateway, "reissued")
    until_status(gateway, leaked_secret, 401)

    applied = gateway.run_command("applyconfig", file(gateway), BRIDGE_KEY_REISSUED=new)

    assert "~ key red/reissued: " in applied.stdout
    until_status(gateway, new, 200)
    assert statuses(gateway, leaked_secret) == {401}
    applied_again = gateway.run_command("applyconfig", file(gateway))
    assert applied_again.returncode == 0, applied_again.stderr
    assert "the file still has the secret that was revoked" in applied_again.stdout
    assert (statuses(gateway, new), statuses(gateway, leaked_secret)) == ({200}, {401})


def test_key_removed_and_restored_in_the_file_is_valid_again(gateway: Gateway):
    text = (gateway.folder / "bridge.toml").read_text(encoding="utf-8")
    shorter = gateway.folder / "shorter.toml"
    shorter.write_text(text.replace(key_table("dropped", "BRIDGE_KEY_DROPPED"), ""), "utf-8")

    with contextlib.ExitStack() as stack:
        stack.callback(gateway.manage, "applyconfig", file(gateway))
        gateway.manage("applyconfig", str(shorter))
        until_status(gateway, secret_of("dropped"), 401)
    until_status(gateway, secret_of("dropped"), 200)
    gateway.manage("applyconfig", str(shorter))
    revoke(gateway, "dropped")
    assert "stays revoked" in applied_lines(gateway, "dropped")
    until_status(gateway, secret_of("dropped"), 401)
