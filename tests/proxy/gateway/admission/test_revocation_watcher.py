"""A revoked key stops working at the next poll, while others are served (T03, G18)."""

import itertools
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from proxy.gateway.snapshot.config_snapshot import POLL_S, Snapshot, directory
from proxy.models import ApiKey, Revision, Team
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient
from tests.waiting import until

numbers = itertools.count()
WITHIN_S = 2.0
BETWEEN_REQUESTS_S = 0.01
"""Without a pause, the clients of a test take all of a core."""


def issued(**fields) -> tuple[ApiKey, str]:
    team = Team.objects.get(name="platform")
    return ApiKey.issue(team, f"taken-{next(numbers)}", scopes=["messages"], **fields)


def revoke(key: ApiKey) -> None:
    key.revoked = datetime.now(UTC)
    key.save(update_fields=["revoked"])


def deactivate(key: ApiKey) -> None:
    assert key.user is not None
    key.user.is_active = False
    key.user.save()


@pytest.mark.parametrize(
    "take_away",
    [revoke, *(pytest.param(way, marks=pytest.mark.slow) for way in (deactivate, ApiKey.delete))],
)
def test_the_last_success_is_at_most_two_seconds_after(
    gateway: GatewayClient, scripted: ScriptedUpstream, take_away
):
    scripted.on("chat-taken", upstream_scripts.chat())
    user = get_user_model().objects.create(username=f"taken-{next(numbers)}")
    key, secret = issued(user=user)
    directory.poll()
    seen: list[tuple[int, int]] = []  # revision that was loaded before a request, its status
    loaded = directory.snapshot.revision
    ending = threading.Event()

    def send() -> None:
        while not ending.wait(BETWEEN_REQUESTS_S):
            known = loaded
            seen.append((known, gateway.post(message("chat-taken"), x_api_key=secret).status))

    def on_load(snapshot: Snapshot) -> None:
        nonlocal loaded
        loaded = snapshot.revision

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: any(status == 200 for _, status in seen))
    directory.listeners.append(on_load)
    take_away(key)
    revoked = Revision.current()
    until(lambda: sum(known >= revoked for known, _ in seen) >= 8)
    ending.set()
    for thread in threads:
        thread.join()
    directory.listeners.remove(on_load)

    assert POLL_S * 2 <= WITHIN_S  # the next poll and its duration
    assert {status for _, status in seen} == {200, 401}
    assert {status for known, status in seen if known >= revoked} == {401}


def test_a_key_ends_at_its_exact_expiry(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-taken", upstream_scripts.chat())
    ends = time.time() + 1
    _, secret = issued(expires=datetime.fromtimestamp(ends, UTC))
    directory.poll()
    seen: list[tuple[float, int, float]] = []
    while not seen or seen[-1][0] < ends:
        began = time.time()
        seen.append(
            (began, gateway.post(message("chat-taken"), x_api_key=secret).status, time.time())
        )
        time.sleep(BETWEEN_REQUESTS_S)

    assert {status for _, status, _ in seen} <= {200, 401}
    assert all(status == 401 for began, status, _ in seen if began >= ends)
    assert all(status == 200 for _, status, ended in seen if ended < ends)


def test_a_rotated_key_works_with_both_secrets_until_the_old_one_ends(
    gateway: GatewayClient, scripted: ScriptedUpstream, capsys
):
    scripted.on("chat-taken", upstream_scripts.chat())
    key, secret = issued()
    call_command("createkey", "--team", "platform", "--name", key.name, "--rotate", "--json")
    fresh = capsys.readouterr().out.split('"key": "')[1].split('"')[0]
    directory.poll()

    replies = [gateway.post(message("chat-taken"), x_api_key=each) for each in (secret, fresh)]

    assert [reply.status for reply in replies] == [200, 200]
    names = [row(reply.id).names.key for reply in replies]
    assert names[0].startswith(f"{key.name}-until-")
    assert names[1] == key.name
    retiring = ApiKey.objects.get(name=names[0])
    retiring.expires = datetime.now(UTC) - timedelta(seconds=1)
    retiring.save()
    directory.poll()
    again = [gateway.post(message("chat-taken"), x_api_key=each) for each in (secret, fresh)]
    assert [reply.status for reply in again] == [401, 200]


@for_each("take_away", [revoke, deactivate])
def test_revoking_a_key_revokes_its_old_secret_too(
    gateway: GatewayClient, scripted: ScriptedUpstream, take_away
):
    scripted.on("chat-taken", upstream_scripts.chat())
    user = get_user_model().objects.create(username=f"taken-{next(numbers)}")
    key, old = issued(user=user)
    _, fresh = key.rotate(timedelta(hours=1))
    directory.poll()
    before = [gateway.post(message("chat-taken"), x_api_key=each).status for each in (old, fresh)]
    take_away(key)
    directory.poll()
    after = [gateway.post(message("chat-taken"), x_api_key=each).status for each in (old, fresh)]

    assert (before, after) == ([200, 200], [401, 401])


def test_the_last_use_of_a_key_is_stored(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-taken", upstream_scripts.chat())
    key, secret = issued()
    directory.poll()
    revision = directory.snapshot.revision
    reply = gateway.post(message("chat-taken"), x_api_key=secret)

    used = row(reply.id).created

    key.refresh_from_db()
    assert key.last_used == used
    directory.poll()
    assert directory.snapshot.revision == revision
