"""A gateway snapshot of this test's database, for admission dry runs. It serves no requests."""

import contextlib

from proxy.admission_checks import _dry_run_functions, register_gateway
from proxy.gateway.admission.dry_run import dry_run_admission
from proxy.gateway.snapshot.config_snapshot import Snapshot, directory, load_snapshot


@contextlib.contextmanager
def gateway_snapshot():
    """Register a gateway with a snapshot of the database, and restore the old state after use."""
    before = directory.snapshot, [*_dry_run_functions]
    directory.snapshot = load_snapshot()
    register_gateway(dry_run_admission)
    try:
        yield directory
    finally:
        directory.snapshot, _dry_run_functions[:] = before
        assert isinstance(directory.snapshot, Snapshot)
