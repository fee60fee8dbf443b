"""``createkey`` and ``revokekey``: what they refuse, and what the admin's log says of them."""

import json

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command

from proxy.models import ApiKey
from proxy.secrets import digest_of
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db


def run(capsys, *arguments: str) -> dict[str, str]:
    call_command(*arguments, "--json")
    told: dict[str, str] = json.loads(capsys.readouterr().out)
    return told


def audit_lines() -> list[tuple[str, str]]:
    lines = LogEntry.objects.order_by("pk").values_list("user__username", "change_message")
    return [(user, message.partition(" UTC")[0]) for user, message in lines]


def without_secret(name: str) -> ApiKey:
    key, _ = cast.key(name)
    ApiKey.objects.filter(pk=key.pk).update(prefix="", digest=None)
    return key


@pytest.mark.parametrize("more", [(), ("--rotate",)])
def test_a_key_without_a_secret_gets_its_first_one(capsys, more):
    key = without_secret("ci")

    told = run(capsys, "createkey", "--team", "platform", "--name", "ci", *more)

    key.refresh_from_db()
    assert bytes(key.digest) == digest_of(told["key"])
    assert ApiKey.objects.count() == 1
    assert audit_lines() == [("gateway", "Given its first secret, by the command createkey.")]


def test_a_rotation_is_in_the_log_and_a_revoked_key_gets_no_secret(capsys):
    cast.key("ci")
    createkey = ("createkey", "--team", "platform", "--name", "ci", "--rotate")
    run(capsys, *createkey)

    revoked = run(capsys, "revokekey", "platform/ci")

    assert revoked["changed"] is True
    assert revoked["revoked_at"].endswith("Z")
    with pytest.raises(CommandError, match="key platform/ci is revoked") as refused:
        run(capsys, *createkey)
    assert refused.value.returncode == 2
    (rotated, ended) = audit_lines()
    assert rotated[1].startswith("Rotated; the old secret ends ")
    assert ended == ("gateway", "Revoked, by the command revokekey.")


def test_a_revocation_that_was_made_before_changes_nothing_and_is_a_finding(capsys):
    key, _ = cast.key("ci")
    key.revoke()
    before = key.revoked

    with pytest.raises(CommandError, match="was revoked before") as found:
        call_command("revokekey", "--team", "platform", "--name", "ci", "--json")

    assert found.value.returncode == 1
    assert json.loads(capsys.readouterr().out)["changed"] is False
    key.refresh_from_db()
    assert key.revoked == before
    assert audit_lines() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "which key"),
        (("ci",), "which key"),
        (("--team", "platform"), "which key"),
        (("platform/ci", "--name", "ci"), "not both"),
        (("platform/c",), "no key 'c' of team platform; did you mean 'ci'"),
        (("platfrom/ci",), "no team 'platfrom'; did you mean 'platform'"),
    ],
)
def test_a_key_that_is_not_named_rightly_is_misuse(arguments, told):
    cast.key("ci")

    with pytest.raises(CommandError, match=told) as refused:
        call_command("revokekey", *arguments)

    assert refused.value.returncode == 2
    assert not ApiKey.objects.get().revoked


def test_the_file_dropped_a_key_and_revokekey_ends_it_for_good(capsys):
    key, _ = cast.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(revoked=key.created, dropped=True)

    assert run(capsys, "revokekey", "platform/ci")["changed"] is True

    key.refresh_from_db()
    assert (key.revoked, key.dropped) == (key.created, False)
