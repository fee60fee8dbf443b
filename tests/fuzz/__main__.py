"""Looks for new findings: ``python -m tests.fuzz SECONDS [SEED]``. A finding is written beside its corpus."""

import hashlib
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from .mutations import mutated  # noqa: E402 - the settings come first
from .targets import TARGETS  # noqa: E402

HERE = Path(__file__).parent


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    ends, tried, found = time.monotonic() + seconds, 0, 0
    corpus = [
        (folder, path.read_bytes())
        for folder in TARGETS
        for path in sorted((HERE / folder).iterdir())
    ]
    while time.monotonic() < ends:
        folder, raw = corpus[tried % len(corpus)]
        candidate = mutated(
            raw, seed + tried, [other for place, other in corpus if place == folder]
        )
        tried += 1
        for target in TARGETS[folder]:
            try:
                target(candidate)
            except Exception as finding:  # noqa: BLE001 - that is what is looked for
                found += 1
                path = HERE / folder / f"found-{hashlib.sha256(candidate).hexdigest()[:12]}"
                path.write_bytes(candidate)
                print(f"{path.name}: {type(finding).__name__}: {finding}")  # noqa: T201
    print(f"{tried:,} inputs, {tried / seconds:,.0f} a second, {found} findings")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
