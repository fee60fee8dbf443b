"""Whichever worker is asked tells the numbers of all, also of those that are gone."""

import time
from pathlib import Path

import pytest

from proxy.metrics import catalogue as c
from proxy.metrics.requests import Ended, field_of
from proxy.metrics.worker import WorkerMetrics
from proxy.record.records import CloseRecord

PRICE = {"input": "1", "output": "10", "cache_read": None,
         "cache_write_5m": None, "cache_write_1h": None}  # fmt: skip


def ended(**fields) -> Ended:
    told = {
        "id": "req_1", "finished": 1.0, "outcome": "completed", "status": 200,
        "ttft_ms": 120.0, "overhead_ms": 1.5, "upstream": "openai", "model_upstream": "gpt",
        "dialect": "chat", "attempts": [{"upstream": "openai", "status": 200}],
        "usage": {"input": 100, "output": 5, "source": "reported"}, "price": PRICE,
    } | fields  # fmt: skip
    closing = CloseRecord(**told)
    return Ended("messages", closing.status, closing.outcome, 0.5, "claude-*", "platform", closing)


@pytest.fixture
def workers(tmp_path: Path):
    made = [WorkerMetrics(in_flight=lambda n=n: n + 1) for n in range(2)]
    for number, worker in enumerate(made):
        worker.start(tmp_path, number)
    yield made
    for worker in made:
        worker.stop()


def until_told(worker: WorkerMetrics, folder: Path, line: str) -> str:
    deadline = time.monotonic() + 90
    while line not in (text := worker.text(folder)).splitlines():
        assert time.monotonic() < deadline, f"never told {line}:\n{text}"
        time.sleep(0.05)
    return text


def requests_line(number: int) -> str:
    return (
        'bridge_requests_total{endpoint="messages",route="claude-*",upstream="openai",'
        f'outcome="completed",status="200"}} {number}'
    )


def test_any_worker_tells_of_all(workers, tmp_path: Path):
    for worker, times in zip(workers, (3, 4), strict=True):
        for _ in range(times):
            worker.ended(ended())

    texts = [until_told(worker, tmp_path, requests_line(7)) for worker in workers]

    for text in texts:
        assert 'bridge_in_flight_requests{worker="0"} 1' in text
        assert 'bridge_in_flight_requests{worker="1"} 2' in text
        assert 'bridge_first_byte_seconds_count{upstream="openai"} 7' in text


def test_the_asked_worker_knows_its_own_requests_at_once(workers, tmp_path: Path):
    workers[0].ended(ended())

    assert requests_line(1) in workers[0].text(tmp_path).splitlines()


def test_sums_outlive_their_worker_and_its_gauges_do_not(workers, tmp_path: Path):
    workers[1].ended(ended())
    workers[1].stop()

    text = until_told(workers[0], tmp_path, requests_line(1))
    assert 'worker="1"} 0' in text
    again = WorkerMetrics(in_flight=lambda: 0)
    again.start(tmp_path, 1)
    again.ended(ended())
    again.stop()
    until_told(workers[0], tmp_path, requests_line(2))


def test_a_dead_workers_gauge_is_not_told(workers, tmp_path: Path):
    (tmp_path / "metrics-7.json").write_text(
        '{"pid": 1, "at": 5.0, "in_flight": 9, "series": {"bridge_notes_total":'
        ' [[["dropped", "top_k"], [2.0]]]}}'
    )
    (tmp_path / "metrics-8.json").write_text("torn")

    text = workers[0].text(tmp_path)

    assert 'bridge_notes_total{fate="dropped",field="top_k"} 2' in text
    assert 'worker="7"' not in text


def test_each_part_of_a_record_is_counted(workers, tmp_path: Path):
    workers[0].ended(
        ended(
            notes=[{"path": "messages.3.content.0.cache_control", "fate": "dropped", "reason": ""}],
            unknown_events={"response.new": 2},
            attempts=[{"upstream": "a", "status": None}, {"upstream": "openai", "status": 200}],
        )
    )
    workers[0].ended(ended(price=None))

    lines = workers[0].text(tmp_path).splitlines()

    for line in (
        'bridge_notes_total{fate="dropped",field="messages.content.cache_control"} 1',
        'bridge_unknown_events_total{dialect="chat",kind="response.new"} 2',
        'bridge_upstream_attempts_total{upstream="a",status="0"} 1',
        'bridge_tokens_total{upstream="openai",model="gpt",class="input",source="reported"} 200',
        'bridge_cost_usd_total{team="platform",upstream="openai",model="gpt"} 0.00015',
        'bridge_unpriced_requests_total{upstream="openai",model="gpt"} 1',
        "bridge_overhead_seconds_count 2",
    ):
        assert line in lines


def test_a_record_that_cannot_be_counted_costs_no_other(workers, tmp_path: Path, caplog):
    workers[0].ended(ended(attempts=[{}]))
    workers[0].ended(ended())

    text = workers[0].text(tmp_path)

    assert requests_line(2) in text.splitlines()
    assert "could not be counted" in caplog.text


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("top_k", "top_k"),
        ("messages.2.content.0.source", "messages.content.source"),
        ("tools[3].strict", "tools.strict"),
    ],
)
def test_a_field_is_one_wherever_it_stands(path, field):
    assert field_of(path) == field


def test_the_catalogue_is_sound():
    for metric in c.CATALOGUE:
        assert metric.name.startswith("bridge_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert list(metric.buckets) == sorted(metric.buckets)
        assert bool(metric.buckets) == (metric.kind == "histogram")
