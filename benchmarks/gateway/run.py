"""Run scenarios against servers: start all servers first, then measure each one in each repeat."""

import json
import shlex
import subprocess
import sys
import time
import urllib.request
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress

from benchmarks.gateway import servers
from benchmarks.gateway.scenarios import SCENARIOS
from benchmarks.gateway.servers import SERVERS, Server

Row = dict[str, Any]
WARM_UP = "--model mock-n200-b5-g0-text --stream --size small -t 1 -c 4"
IDLE_CPU_S = 0.03  # within a sample of 0.4 s


class Bench:
    """Runs scenarios against the chosen servers that are installed."""

    def __init__(self, console: Console, names: list[str]) -> None:
        self.console = console
        chosen = [SERVERS[name] for name in names]
        for server in chosen:
            if not server.installed:
                console.print(f"[bold red]NOT MEASURED: {server.name} is not installed")
        self.servers = [server for server in chosen if server.installed]

    def run(self, scenarios: list[str], repeats: int) -> list[Row]:
        try:
            rows = [row for server in list(self.servers) for row in self._started(server)]
            with Progress(console=self.console) as progress:
                total = sum(len(self.taking_part(name)) for name in scenarios) * repeats
                task = progress.add_task("measuring", total=total)
                for server in self.servers:
                    load(server, WARM_UP)
                for name in scenarios:
                    for repeat in range(repeats):
                        for server in self.taking_part(name):
                            progress.update(task, description=f"{name} {server.name}")
                            row = load(server, SCENARIOS[name].options)
                            row |= {"scenario": name, "server": server.name, "repeat": repeat}
                            rows.append(row)
                            progress.advance(task)
        finally:
            for server in self.servers:
                server.stop()
        return rows

    def taking_part(self, scenario: str) -> list[Server]:
        """Return the started servers that take part in the scenario."""
        chosen = SCENARIOS[scenario].servers
        return [each for each in self.servers if not chosen or each.name in chosen]

    def _started(self, server: Server) -> list[Row]:
        """Measure S5 and S6; warn about a server that does not start and leave it out."""
        try:
            seconds = server.start()
        except RuntimeError as error:
            self.console.print(f"[bold red]NOT MEASURED: {server.name} does not start")
            self.console.print(str(error), markup=False)
            server.stop()
            self.servers.remove(server)
            return []
        time.sleep(2)
        idle_mb = round(memory(server) / 2**20, 1)
        return [
            {"scenario": "S5", "server": server.name, "cold_s": round(seconds, 2)},
            {"scenario": "S6", "server": server.name, "idle_mb": idle_mb},
        ]


def tree(server: Server) -> list[psutil.Process]:
    assert server.process is not None
    root = psutil.Process(server.process.pid)
    return [root, *root.children(recursive=True)]


def memory(server: Server) -> int:
    return sum(process.memory_info().rss for process in tree(server))


def cpu(server: Server) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree(server))


def quiet(server: Server, within_s: float = 60) -> float:
    """Wait until a server is idle: cut streams and its drainer must not affect the next run.

    Return the CPU seconds that it used while it became idle: they belong to the earlier requests.
    """
    deadline = time.monotonic() + within_s
    began = cpu(server)
    while time.monotonic() < deadline:
        before = cpu(server)
        time.sleep(0.4)
        if cpu(server) - before < IDLE_CPU_S and not backlog(server):
            break
    return cpu(server) - began


def backlog(server: Server) -> int:
    """Return how many records the gateway has not posted to its database yet."""
    if not server.name.startswith("bridge"):
        return 0
    with urllib.request.urlopen(server.url + "/readyz", timeout=20) as answer:
        return int(json.load(answer)["backlog"])


def load(server: Server, options: str) -> Row:
    """Run the load once; ``whole_cpu_…`` includes the server's work after the last response."""
    assert server.process is not None
    command = [sys.executable, "-m", "benchmarks.gateway.load", "--url", server.url]
    command += [*shlex.split(options), "--api", server.api, "--model-prefix", server.model_prefix]
    command += ["--pid", str(server.process.pid)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=servers.REPOSITORY, check=False
    )
    if done.returncode:
        return {"error": done.stderr[-500:]}
    row: Row = json.loads(done.stdout.strip().splitlines()[-1])
    for figure, name in (("delay", "delay_ms"), ("first", "first_ms"), ("gap", "gap_ms")):
        if isinstance(spread := row.get(name), dict):
            row |= {f"{figure}_p50": spread["p50"], f"{figure}_p99": spread["p99"]}
    after = quiet(server)
    if row.get("ok"):
        row["whole_cpu_ms_per_request"] = round((row["cpu_s"] + after) * 1000 / row["ok"], 3)
    return row
