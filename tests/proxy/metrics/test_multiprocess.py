"""The metrics of several worker processes, as any of them reports them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.metrics import multiprocess
from proxy.metrics.bounded_labels import MAX_LABEL_SETS, OTHER

from .samples import samples_of

REPOSITORY = Path(__file__).parents[3]
SAMPLE = 'bridge_notes_total{fate="dropped",field="top_k"}'


class Worker:
    def __init__(self, directory: Path, before_start: str = "") -> None:
        program = f"{before_start}\nimport tests.proxy.metrics.worker_process"
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
            env={**os.environ, multiprocess.VARIABLE: str(directory)},
        )  # fmt: skip

    def run(self, statements: str = "") -> dict[str, float]:
        """Run these statements in the worker and return what /metrics of it reports then."""
        return samples_of(self.report(statements))

    def report(self, statements: str = "") -> str:
        """Run these statements in the worker and return the text of /metrics."""
        self.process.stdin.write(json.dumps(statements).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv(multiprocess.VARIABLE, "")  # ``prepare`` sets it; undone after the test
    multiprocess.prepare(tmp_path)
    return Path(os.environ[multiprocess.VARIABLE])


@pytest.fixture
def start_worker(directory: Path) -> Iterator[Callable[[], Worker]]:
    workers = []

    def start() -> Worker:
        workers.append(Worker(directory))
        workers[-1].report()  # has its number
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def test_each_worker_reports_the_sum_of_all(start_worker):
    workers = [start_worker(), start_worker()]
    for worker, times in zip(workers, (3, 4), strict=True):
        worker.run(
            f"NOTES.labels('dropped', 'top_k').inc({times})\n"
            f"WORKER_IN_FLIGHT.inc({times})\n"
            f"for _ in range({times}): OVERHEAD_SECONDS.observe(0.002)"
        )

    for found in (worker.run() for worker in workers):
        assert found[SAMPLE] == 7
        assert found["bridge_overhead_seconds_count{}"] == 7
        assert found['bridge_overhead_seconds_bucket{le="0.001"}'] == 0
        assert found['bridge_overhead_seconds_bucket{le="0.0025"}'] == 7
        assert found["bridge_overhead_seconds_sum{}"] == pytest.approx(0.014)
        assert found['bridge_in_flight_requests{worker="0"}'] == 3
        assert found['bridge_in_flight_requests{worker="1"}'] == 4


def test_counters_do_not_fall_when_a_worker_is_replaced(start_worker, directory: Path):
    first, second = start_worker(), start_worker()
    second.run("NOTES.labels('dropped', 'top_k').inc(2); OVERHEAD_SECONDS.observe(0.002)")
    files = sorted(directory.iterdir())
    for _ in range(3):
        second.kill()
        assert first.run()[SAMPLE] == 2
        second = start_worker()

    found = second.run("NOTES.labels('dropped', 'top_k').inc(); OVERHEAD_SECONDS.observe(0.002)")

    assert found[SAMPLE] == 3
    assert found["bridge_overhead_seconds_count{}"] == 2
    assert sorted(directory.iterdir()) == files


def test_a_dead_worker_has_no_gauge(start_worker):
    first, second = start_worker(), start_worker()
    second.run("WORKER_IN_FLIGHT.inc(9)")
    assert first.run()['bridge_in_flight_requests{worker="1"}'] == 9

    second.kill()

    assert 'bridge_in_flight_requests{worker="1"}' not in first.run()
    assert start_worker().run()['bridge_in_flight_requests{worker="1"}'] == 0


def test_hostile_labels_fit_into_the_allocated_files_also_after_restarts(
    start_worker, directory: Path
):
    for run in range(2):
        worker = start_worker()
        text = worker.report(
            "for metric in METRICS:\n"
            "    for number in range(MAX_LABEL_SETS + 50):\n"
            "        if metric.family.type == 'counter':\n"
            f"            value = f'{run}-{{number}}'.ljust(100, chr(92))\n"
            "            metric.labels(*(value for _ in metric.label_names)).inc()\n"
            "        elif metric.family.type == 'gauge':\n"
            "            value = str(number).ljust(100, chr(92))\n"
            "            metric.labels(*(value for _ in metric.label_names)).set(1)"
        )
        worker.kill()

    notes = samples_of("".join(re.findall(r"^bridge_notes_total.*\n", text, re.MULTILINE)))
    assert len(notes) == MAX_LABEL_SETS + 1
    assert notes[f'bridge_notes_total{{fate="{OTHER}",field="{OTHER}"}}'] == 50 + 1_050
    for prefix, size in multiprocess.FILE_BYTES.items():
        assert (directory / f"{prefix}_0.db").stat().st_size == size


def test_a_start_of_the_gateway_begins_at_zero(start_worker, directory: Path):
    start_worker().run("NOTES.labels('dropped', 'top_k').inc()")

    multiprocess.prepare(directory.parent)

    assert SAMPLE not in start_worker().run()


def test_a_worker_reports_its_own_metrics_while_the_disk_is_full(directory: Path):
    limit = multiprocess.FILE_BYTES["counter"] // 2  # a larger file is an OSError, as ENOSPC is
    worker = Worker(
        directory,
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))",
    )

    found = worker.run("NOTES.labels('dropped', 'top_k').inc()")
    worker.kill()

    assert found[SAMPLE] == 1
    assert list(directory.glob("*.db")) == []


def test_the_gateway_starts_where_the_directory_cannot_be_created(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv(multiprocess.VARIABLE, raising=False)
    (tmp_path / "metrics").write_text("a file")

    multiprocess.prepare(tmp_path)

    assert multiprocess.VARIABLE not in os.environ
    assert "do not share their metrics" in caplog.text


def test_one_process_alone_has_its_values_in_memory(tmp_path: Path):
    assert multiprocess.worker.directory is None
    assert multiprocess.worker.number == 0
