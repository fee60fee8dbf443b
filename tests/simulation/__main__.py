"""Many worlds: ``python -m tests.simulation --seeds 10000``, or one again: ``--seed 123``.

A world that is not well is told with its seed. Exit code 1: there was one, or it was interrupted,
which ends it with what there was until then.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from tests.simulation.world import World, again  # noqa: E402 - models come after the set-up


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--seed", type=int, help="only this one, and all that it says")
    parser.add_argument("--requests", type=int, default=200, help="in each world")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    most = 5  # faults that are told of a world
    if options.seed is not None:
        seeds, most = range(options.seed, options.seed + 1), sys.maxsize
    began, worlds, requests, bad = time.monotonic(), 0, 0, 0
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        for seed in seeds:
            told = World(seed, options.requests, Path(folder)).run()
            worlds += 1
            requests += told.requests
            outcomes += told.outcomes
            if told.faults:
                bad += 1
                say(f"\nseed {seed}: {len(told.faults)} faults")
                for fault in told.faults[:most]:
                    say(f"  {fault}")
                say(f"  again: {again(seed, options.requests)}")
            if sys.stdout.isatty():
                say(f"\r{worlds} of {len(seeds)} worlds, {bad} bad", "")
    spent = time.monotonic() - began
    say("\n" + ", ".join(f"{name} {count:,}" for name, count in outcomes.most_common()))
    say(f"{worlds:,} worlds of ten minutes, {requests:,} requests in {spent:.0f} s, {bad} bad")
    return 1 if bad or worlds < len(seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
