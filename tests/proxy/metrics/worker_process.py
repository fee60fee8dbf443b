"""A worker of the tests: reads Python statements from stdin, answers each with one JSON line."""

import json
import sys

from proxy.metrics.bounded_labels import MAX_LABEL_SETS
from proxy.metrics.definitions import METRICS, NOTES, OVERHEAD_SECONDS, WORKER_IN_FLIGHT
from proxy.metrics.exposition import exposition

NAMES = {
    "MAX_LABEL_SETS": MAX_LABEL_SETS,
    "METRICS": METRICS,
    "NOTES": NOTES,
    "OVERHEAD_SECONDS": OVERHEAD_SECONDS,
    "WORKER_IN_FLIGHT": WORKER_IN_FLIGHT,
}

for line in sys.stdin:
    exec(json.loads(line), dict(NAMES))  # noqa: S102 - statements of the tests
    sys.stdout.write(json.dumps(exposition().decode()) + "\n")
    sys.stdout.flush()
