"""The spool's writer, played in this process: what it is told is on its socket before it begins."""

import contextlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.record import spool_file, spool_talk, spool_writer
from proxy.record.records import KIND, Record, encode
from proxy.record.spool_talk import FAULT, JOB, LANDED, LOGGED, OPENED, READY, REFUSED, RESULT
from proxy.record.spool_writer import Line, Writer

from .making import closing, exchange_id, opening
from .writing import read_ids

RESERVE_BYTES = 65_536
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Told = list[tuple[int, bytes]]


def said(number: int, record: Record) -> bytes:
    return spool_talk.say(number, KIND[type(record)], 1.0, record.id, encode(record))


def asked(number: int, job: str, *arguments: object) -> bytes:
    return spool_talk.say(number, JOB, 0, job, json.dumps(arguments).encode())


def play(path: Path, *some: bytes, most_bytes: int = 2**30) -> Told:
    """What a writer tells of all this, in its order; the gateway hangs up behind it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(some))
        ours.shutdown(socket.SHUT_WR)
        Writer(path, path.with_suffix(".reserve"), RESERVE_BYTES, most_bytes, [theirs]).run()
        return heard(ours)


def heard(link: socket.socket) -> Told:
    """All that was told before."""
    got = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            got += link.recv(65_536, socket.MSG_DONTWAIT)
    answers, rest = spool_talk.told(got)
    assert rest == b""
    return answers


def numbers(answers: Told, kind: int) -> list[int]:
    return [n for k, payload in answers if k == kind for n in spool_talk.numbers_of(payload)]


def faults(answers: Told) -> list[str]:
    return [payload[8:].decode() for kind, payload in answers if kind == FAULT]


def results(answers: Told) -> list[dict[str, Any]]:
    return [json.loads(payload[8:]) for kind, payload in answers if kind == RESULT]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool-0.sqlite3"


def test_it_tells_that_it_listens_and_what_landed(path: Path) -> None:
    answers = play(path, said(1, opening(1)), said(2, closing(1)), asked(3, "backlog"))

    assert [kind for kind, _ in answers] == [OPENED, FAULT, READY, LANDED, RESULT]
    assert (numbers(answers, OPENED), numbers(answers, LANDED)) == ([1], [1, 2])
    assert faults(answers) == [""]
    assert results(answers) == [{"is": [2, 1.0, 0]}]
    assert read_ids(path) == [exchange_id(1)] * 2


@pytest.mark.parametrize(
    ("job", "fault"), [(("forget", "too", "many", "arguments"), "argument"), (("drop",), "drop")]
)
def test_a_job_that_fails_takes_nothing_with_it(
    path: Path, job: tuple[str, ...], fault: str
) -> None:
    answers = play(path, asked(1, *job), said(2, opening(1)))

    (told,) = results(answers)
    assert fault in told["fault"]
    assert numbers(answers, LANDED) == [2]


def test_it_writes_what_it_was_told_by_a_gateway_that_has_gone(path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(said(1, opening(1)) + said(2, closing(1)))
    ours.close()

    with theirs:
        Writer(path, path.with_suffix(".reserve"), RESERVE_BYTES, 2**30, [theirs]).run()

    assert read_ids(path) == [exchange_id(1)] * 2


def test_a_gateway_that_left_its_answers_unread_has_gone_as_well() -> None:
    """The kernel tells of it by a reset, not by an end."""
    ours, theirs = socket.socketpair()
    with theirs:
        line = Line(theirs, memoryview(bytearray(1_024)))
        line.tell(READY)
        ours.close()

        assert line.hear() is None


def test_a_disk_that_is_not_there_refuses_requests_and_is_told_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = play(
        tmp_path / "gone" / "spool-0.sqlite3",
        said(1, opening(1)), said(2, closing(2)), asked(3, "backlog"),
    )  # fmt: skip

    assert faults(answers) == ["unable to open database file"]
    assert (numbers(answers, REFUSED), numbers(answers, LANDED)) == ([1], [])
    assert results(answers) == [{"fault": "unable to open database file"}]
    assert caplog.messages == ["1 close records could not be written"]


def test_a_spool_that_has_grown_too_large_refuses_requests_and_takes_their_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_writer, "LOOK_EVERY", 1)
    monkeypatch.setattr(spool_writer, "MOST_TOGETHER", 1)  # each in a commit of its own
    large = opening(1, body=os.urandom(200_000))

    answers = play(
        path, said(1, large), said(2, opening(2)), said(3, closing(1)), most_bytes=100_000
    )

    assert faults(answers) == ["", "the spool holds more than 100000 bytes"]
    assert (numbers(answers, LANDED), numbers(answers, REFUSED)) == ([1, 3], [2])
    assert read_ids(path) == [exchange_id(1)] * 2
    assert not path.with_suffix(".reserve").exists()

    answers = play(path, said(4, opening(4)), most_bytes=100_000)  # the next one finds it so

    assert faults(answers) == ["the spool holds more than 100000 bytes"]
    assert numbers(answers, REFUSED) == [4]


@pytest.fixture
def as_we_are() -> Iterator[None]:
    """The program changes its process, and here that is ours."""
    handlers, before = [*logging.root.handlers], [signal.getsignal(each) for each in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)
    logging.root.handlers[:] = handlers


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # they end with the process
def test_the_program_logs_at_its_gateway_and_leaves_signals_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_we_are: None
) -> None:
    path = tmp_path / "gone" / "spool-0.sqlite3"
    ours, theirs = socket.socketpair()
    sizes = [str(RESERVE_BYTES), str(2**30)]
    files = [str(path), str(path.with_suffix(".reserve"))]
    monkeypatch.setattr(sys, "argv", ["writer", *files, *sizes, str(theirs.detach())])
    monkeypatch.delitem(sys.modules, spool_writer.__name__)  # it is to be run, not imported
    ours.sendall(said(1, closing(1)))
    ours.shutdown(socket.SHUT_WR)

    runpy.run_module(spool_writer.__name__, run_name="__main__")

    assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_IGN}
    with ours:
        logged = [json.loads(payload) for kind, payload in heard(ours) if kind == LOGGED]
    assert logged == [[logging.ERROR, "1 close records could not be written"]]


def test_an_append_of_nothing_is_nothing(path: Path) -> None:
    link = spool_file.create(path)

    spool_file.append(link, [])

    assert (link.in_transaction, read_ids(path)) == (False, [])
    link.close()
