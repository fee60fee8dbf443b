"""Run every file of the fuzzing corpora and some mutations of each.

``BRIDGE_FUZZ=100000`` sets the number of mutations; ``python -m tests.slow.fuzz SECONDS`` runs longer
and saves findings.
"""

import os
from pathlib import Path

import pytest

from .mutations import mutated
from .targets import TARGETS

HERE = Path(__file__).parent
FILES = [path for folder in TARGETS for path in sorted((HERE / folder).iterdir())]
MUTATIONS = max(40, int(os.environ.get("BRIDGE_FUZZ", "0")) // max(1, len(FILES)))


@pytest.mark.timeout(60 + MUTATIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_corpus_file_and_its_mutations_cause_no_finding(path):
    raw = path.read_bytes()
    others = [other.read_bytes() for other in FILES if other.parent == path.parent]

    for target in TARGETS[path.parent.name]:
        target(raw)
        for seed in range(MUTATIONS):
            target(mutated(raw, seed, others))


def test_mutation_is_deterministic():
    assert mutated(b'{"a": 1}', 7, [b"x"]) == mutated(b'{"a": 1}', 7, [b"x"])
    assert len({mutated(b'{"a": 1}', seed, []) for seed in range(50)}) > 30
