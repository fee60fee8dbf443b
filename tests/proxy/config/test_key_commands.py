"""``createkey`` and ``revokekey``: their errors and their entries in the audit log."""

import json
import re

import pytest
from django.core.management import CommandError, call_command

from proxy.models import ApiKey
from proxy.secrets import digest_of
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


def run(capsys, *arguments: str) -> dict[str, str]:
    call_command(*arguments, "--json")
    output: dict[str, str] = json.loads(capsys.readouterr().out)
    return output


def audit_lines() -> list[tuple[str, str, str]]:
    entries = factories.audit(actor_kind="command")
    return [(entry.command, entry.action, entry.object_name) for entry in entries]


def without_secret(name: str) -> ApiKey:
    key, _ = factories.key(name)
    ApiKey.objects.filter(pk=key.pk).update(prefix="", digest=None)
    return key


@pytest.mark.parametrize("more", [(), ("--rotate",)])
def test_a_key_without_a_secret_gets_its_first_one(capsys, more):
    key = without_secret("ci")

    output = run(capsys, "createkey", "--team", "platform", "--name", "ci", *more)

    key.refresh_from_db()
    assert bytes(key.digest) == digest_of(output["key"])
    assert ApiKey.objects.count() == 1
    assert audit_lines() == [("createkey", "rotate", "platform/ci")]


def test_a_rotation_is_logged_and_a_revoked_key_gets_no_secret(capsys):
    factories.key("ci")
    createkey = ("createkey", "--team", "platform", "--name", "ci", "--rotate")
    run(capsys, *createkey)

    revoked = run(capsys, "revokekey", "platform/ci")

    assert revoked["changed"] is True
    assert revoked["revoked_at"].endswith("Z")
    with pytest.raises(CommandError, match="key platform/ci is revoked") as caught:
        run(capsys, *createkey)
    assert caught.value.returncode == 2
    rotated, retiring, ended = audit_lines()
    assert rotated == ("createkey", "rotate", "platform/ci")
    assert retiring[:2] == ("createkey", "add")
    assert retiring[2].startswith("platform/ci-until-")
    assert ended == ("revokekey", "revoke", "platform/ci")


def test_a_second_revocation_changes_nothing_and_exits_with_1(capsys):
    key, _ = factories.key("ci")
    key.revoke()
    before = key.revoked

    with pytest.raises(CommandError, match="was revoked before") as found:
        call_command("revokekey", "--team", "platform", "--name", "ci", "--json")

    assert found.value.returncode == 1
    assert json.loads(capsys.readouterr().out)["changed"] is False
    key.refresh_from_db()
    assert key.revoked == before
    assert audit_lines() == []


def test_createkey_gives_a_key_of_the_file_its_secret_once(capsys, tmp_path):
    file = tmp_path / "bridge.toml"
    file.write_text('[[teams]]\nname = "ada"\n[[keys]]\nteam = "ada"\nname = "ben"\n')
    call_command("applyconfig", file)
    capsys.readouterr()
    createkey = ("createkey", "--team", "ada", "--name", "ben")

    output = run(capsys, *createkey)

    assert re.fullmatch("sk-br-[A-Za-z0-9_-]{43}", output["key"])
    with pytest.raises(CommandError, match="exists") as caught:
        call_command(*createkey)
    assert caught.value.returncode == 2
    call_command("applyconfig", file)
    assert capsys.readouterr().out == "No changes.\n"


def test_createkey_gives_a_key_to_a_user(capsys):
    factories.team("platform")
    ada = factories.staff("ada")

    output = run(capsys, "createkey", "--team", "platform", "--name", "ada", "--user", "ada")

    assert output["user"] == "ada"
    assert ApiKey.objects.get().user == ada
    assert audit_lines() == [("createkey", "add", "platform/ada")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--name", "new", "--user", "adda"), "--user: no user 'adda'; did you mean 'ada'"),
        (("--name", "ci", "--user", "ada"), "key platform/ci belongs to no user"),
        (("--name", "ci", "--user", "ada", "--rotate"), "--rotate keeps the user of the key"),
    ],
)
def test_createkey_with_a_wrong_user_exits_with_2(more, message):
    factories.staff("ada")
    before = without_secret("ci")

    with pytest.raises(CommandError, match=message) as caught:
        call_command("createkey", "--team", "platform", *more)

    assert caught.value.returncode == 2
    before.refresh_from_db()
    assert (before.user, before.has_secret, ApiKey.objects.count()) == (None, False, 1)


@pytest.mark.parametrize(
    ("team", "name", "message"),
    [
        ("platfrom", "ci", "no team 'platfrom'; did you mean 'platform'"),
        ("platform", "my laptop", "--name is 'my laptop'; letters, digits, - and _ are expected"),
    ],
)
def test_createkey_with_a_wrong_team_or_name_exits_with_2(team, name, message):
    factories.team("platform")

    with pytest.raises(CommandError, match=message) as caught:
        call_command("createkey", "--team", team, "--name", name)

    assert caught.value.returncode == 2
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no key is named"),
        (("ci",), "no key is named"),
        (("--team", "platform"), "no key is named"),
        (("platform/ci", "--name", "ci"), "not both"),
        (("platform/c",), "no key 'c' of team platform; did you mean 'ci'"),
        (("platfrom/ci",), "no team 'platfrom'; did you mean 'platform'"),
    ],
)
def test_a_wrong_key_name_exits_with_2(arguments, message):
    factories.key("ci")

    with pytest.raises(CommandError, match=message) as caught:
        call_command("revokekey", *arguments)

    assert caught.value.returncode == 2
    assert not ApiKey.objects.get().revoked


def test_revokekey_permanently_revokes_a_key_that_the_file_dropped(capsys):
    key, _ = factories.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(revoked=key.created, dropped=True)

    assert run(capsys, "revokekey", "platform/ci")["changed"] is True

    key.refresh_from_db()
    assert (key.revoked, key.dropped) == (key.created, False)
