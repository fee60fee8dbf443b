"""Search for new findings: ``python -m tests.slow.fuzz SECONDS [SEED]``; each is saved in its corpus."""

import hashlib
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from .mutations import mutated  # noqa: E402 - needs the settings
from .targets import TARGETS  # noqa: E402

HERE = Path(__file__).parent


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    deadline, count, findings = time.monotonic() + seconds, 0, 0
    corpus = [
        (folder, path.read_bytes())
        for folder in TARGETS
        for path in sorted((HERE / folder).iterdir())
    ]
    while time.monotonic() < deadline:
        folder, raw = corpus[count % len(corpus)]
        candidate = mutated(
            raw, seed + count, [other for place, other in corpus if place == folder]
        )
        count += 1
        for target in TARGETS[folder]:
            try:
                target(candidate)
            except Exception as error:  # noqa: BLE001 - any exception is a finding
                findings += 1
                path = HERE / folder / f"found-{hashlib.sha256(candidate).hexdigest()[:12]}"
                path.write_bytes(candidate)
                print(f"{path.name}: {type(error).__name__}: {error}")  # noqa: T201
    print(f"{count:,} inputs, {count / seconds:,.0f} a second, {findings} findings")  # noqa: T201
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
