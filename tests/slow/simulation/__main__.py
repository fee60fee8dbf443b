"""Run simulated worlds: ``python -m tests.slow.simulation --seeds 10000``, or one: ``--seed 123``.

A world with faults is reported with its seed. The exit code is 1 if a world had faults or the run was
interrupted; an interrupted run reports the worlds so far.
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

from .world import World, reproduce_command  # noqa: E402 - models need the setup


def write(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slow.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="number of worlds")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--seed", type=int, help="run only this seed and print all faults")
    parser.add_argument("--requests", type=int, default=200, help="in each world")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    max_faults = 5  # printed for each world
    if options.seed is not None:
        seeds, max_faults = range(options.seed, options.seed + 1), sys.maxsize
    start, worlds, requests, failed = time.monotonic(), 0, 0, 0
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        for seed in seeds:
            result = World(seed, options.requests, Path(folder)).run()
            worlds += 1
            requests += result.requests
            outcomes += result.outcomes
            if result.faults:
                failed += 1
                write(f"\nseed {seed}: {len(result.faults)} faults")
                for fault in result.faults[:max_faults]:
                    write(f"  {fault}")
                write(f"  reproduce: {reproduce_command(seed, options.requests)}")
            if sys.stdout.isatty():
                write(f"\r{worlds} of {len(seeds)} worlds, {failed} failed", "")
    spent = time.monotonic() - start
    write("\n" + ", ".join(f"{name} {count:,}" for name, count in outcomes.most_common()))
    write(
        f"{worlds:,} worlds of ten minutes, {requests:,} requests in {spent:.0f} s, {failed} failed"
    )
    return 1 if failed or worlds < len(seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
