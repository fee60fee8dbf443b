"""The fuzzing corpora on each push: every file, and each spoilt in some ways.

``BRIDGE_FUZZ=100000`` spoils so many; ``python -m tests.fuzz SECONDS`` goes on and keeps findings.
"""

import os
from pathlib import Path

import pytest

from .mutations import mutated
from .targets import TARGETS

HERE = Path(__file__).parent
FILES = [path for folder in TARGETS for path in sorted((HERE / folder).iterdir())]
SPOILT = max(40, int(os.environ.get("BRIDGE_FUZZ", "0")) // max(1, len(FILES)))


@pytest.mark.timeout(60 + SPOILT)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_of_the_corpus_and_what_becomes_of_it(path):
    raw = path.read_bytes()
    others = [other.read_bytes() for other in FILES if other.parent == path.parent]

    for target in TARGETS[path.parent.name]:
        target(raw)
        for seed in range(SPOILT):
            target(mutated(raw, seed, others))


def test_a_spoilt_input_is_the_same_for_the_same_seed():
    assert mutated(b'{"a": 1}', 7, [b"x"]) == mutated(b'{"a": 1}', 7, [b"x"])
    assert len({mutated(b'{"a": 1}', seed, []) for seed in range(50)}) > 30
