"""Stop the running requests of a revoked key, if the setting ``end_revoked`` is on.

If the setting is off, a request that was admitted runs to its end.
"""

import time
from typing import Final

from proxy.conf import conf
from proxy.gateway.snapshot.config_snapshot import Snapshot, directory
from proxy.live.running_requests import RUNNING
from proxy.permissions.key_validity import Reason, refusals

WHO: Final = "the revocation of its key"


def watch_for_revocations() -> None:
    """Register ``stop_revoked_requests`` for new configuration snapshots.

    A second call has no effect.
    """
    if conf.end_revoked and stop_revoked_requests not in directory.listeners:
        directory.listeners.append(stop_revoked_requests)


def stop_revoked_requests(snapshot: Snapshot) -> None:
    """Stop every request of this process whose key is revoked or unknown."""
    now = time.time()
    valid = {
        caller.key_id
        for caller in snapshot.keys.values()
        # expiry does not stop running requests
        if set(refusals(caller.ends, now)) <= {Reason.EXPIRED}
    }
    for request in list(RUNNING.values()):
        if request.live_row()["key_id"] not in valid:
            request.stop_by(WHO)
