"""Profile a server with py-spy during a run; count only samples with the GIL."""

import collections
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.gateway import servers
from benchmarks.gateway.scenarios import SCENARIOS
from benchmarks.gateway.servers import SERVERS, WORK

SECONDS = 6
SHOWN = 40


def profile(scenario: str, name: str, console: Console) -> None:
    """Print where the first server spends its time; py-spy is on the PATH or named by ``PYSPY``."""
    program = os.environ.get("PYSPY") or shutil.which("py-spy")
    if program is None:
        console.print("[bold red]py-spy is not installed: pip install py-spy, or set PYSPY")
        return
    server = SERVERS[name]
    samples = WORK / f"{name}-{scenario}.raw"
    server.start()
    try:
        assert server.process is not None
        command = [sys.executable, "-m", "benchmarks.gateway.load", "--url", server.url]
        command += [*shlex.split(SCENARIOS[scenario].options), "-t", str(SECONDS + 2)]
        command += ["--api", server.api, "--pid", str(server.process.pid)]
        with subprocess.Popen(command, cwd=servers.REPOSITORY, stdout=subprocess.PIPE) as load:
            time.sleep(1)
            spy = [program, "record", "-p", str(server.process.pid), "-d", str(SECONDS)]
            spy += ["-r", "250", "-f", "raw", "-o", str(samples), "--gil"]
            subprocess.run(spy, check=True, capture_output=True)
            load.wait()
    finally:
        server.stop()
    show(samples, console)


def show(samples: Path, console: Console) -> None:
    within, itself, threads = (collections.Counter[str]() for _ in range(3))
    for line in samples.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        for frame in set(frames):
            within[frame] += int(count)
        itself[frames[-1]] += int(count)
        threads[frames[0]] += int(count)
    total = sum(threads.values())
    for title, counter in (("thread", threads), ("itself", itself), ("with all below", within)):
        console.print(f"[bold]% of samples, {title}")
        for frame, count in counter.most_common(SHOWN):
            console.print(f"{count * 100 / total:5.1f}  {frame}", markup=False, highlight=False)
