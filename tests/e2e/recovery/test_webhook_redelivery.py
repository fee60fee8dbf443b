"""An event survives kill -9 of the gateway during its delivery, and arrives with the same id."""

import signal
import time

import pytest

from proxy.models.setup.webhooks import new_signing_secret
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.webhook_receiver import Receiver, running_receiver


def wait_for(receiver: Receiver, requests: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while len(receiver.requests) < requests:
        assert time.monotonic() < deadline, f"{len(receiver.requests)} requests arrived"
        time.sleep(0.1)


@pytest.mark.slow
def test_an_event_arrives_again_with_its_id_after_kill_9(tmp_path):
    secret = str(new_signing_secret())
    (tmp_path / "hook_secret").write_text(secret)
    with running_receiver() as receiver, Gateway(tmp_path, key="") as gateway:
        config = tmp_path / "webhooks.toml"
        config.write_text(
            f'[[webhooks]]\nname = "ops"\nurl = "{receiver.url}"\n'
            f'secret = {{ file = "{tmp_path}/hook_secret" }}\n'
        )
        gateway.manage("applyconfig", str(config))
        gateway.manage("createkey", "--team", "default", "--name", "doomed")
        receiver.may_answer.clear()

        gateway.manage("revokekey", "--team", "default", "--name", "doomed")
        wait_for(receiver, 1, within_s=20)
        gateway.stop(signal.SIGKILL)
        receiver.may_answer.set()
        gateway.start()
        wait_for(receiver, 2, within_s=120)

    first, second = receiver.verified(secret)
    assert first == second
    assert first["data"]["name"] == "default/doomed"
    assert len(set(receiver.ids)) == 1
