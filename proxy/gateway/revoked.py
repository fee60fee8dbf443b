"""Ends what still runs on a key that was revoked, where the operator wants that (K09).

Without that a request that was let in is answered to its end.
"""

import time
from typing import Final

from proxy.conf import conf
from proxy.key_validity import Reason, refusals
from proxy.live.running import RUNNING

from .directory import Snapshot, directory

WHO: Final = "the revocation of its key"


def watch_for_revocations() -> None:
    """Again is fine."""
    if conf.end_revoked and end_revoked not in directory.listeners:
        directory.listeners.append(end_revoked)


def end_revoked(snapshot: Snapshot) -> None:
    """Stop every request of this process whose key is not, or no longer, in force."""
    now = time.time()
    valid = {
        caller.key_id
        for caller in snapshot.keys.values()
        if set(refusals(caller.ends, now)) <= {Reason.EXPIRED}  # what expires finishes its requests
    }
    for one in list(RUNNING.values()):
        if one.glance()["key_id"] not in valid:
            one.stop_by(WHO)
