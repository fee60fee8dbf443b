"""Run every variant of the fault catalogue; see ``catalogue.py``.

The fast lane runs one case of each variant on SQLite; the slow lane runs every case on both
databases.
"""

import random
import re
from typing import Any, NamedTuple

import pytest

from tests.fakes.servers.gateway import Reply
from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.lanes import is_slow

from . import fault_scenarios
from .catalogue import Case, Fault, Variant, cases_of, examples_of, faults_with_variants
from .concurrent_faults import (
    WAITING,
    WAITING_ALONE,
    at_once,
    recut,
    runs_with_others,
    with_longer_pauses,
)
from .environment.client import RawClient, usual_request
from .environment.invariants import FAILURES, World, assert_row_is_consistent, usage_of
from .environment.ledger import Row
from .fault_scripts import GATE, TEXTS, completes_response, turns

NO_RESPONSE = {"gone", "closed"}


class CaseResult(NamedTuple):
    """The result of one case: its model and the client's response."""

    case: Case
    model: str
    reply: Reply | None

    @property
    def accepted(self) -> int:
        """The number of rows that the case must have."""
        return 0 if self.case.variant.row == "none" else self.case.variant.row.count(",") + 1

    def owns(self, row: Row) -> bool:
        """Return whether a row belongs to the case, by request id or by the case's unique model."""
        if self.reply is not None and row["id"] == self.reply.headers.get("request-id"):
            return True
        return bool(row["model_requested"] == self.model)


def groups_on(database: str, *marks: pytest.MarkDecorator) -> list[Any]:
    """Return all faults in groups, each with the database.

    A group has one fault, or the faults that run at the same time: in the fast lane all that can, in
    the slow lane those that wait for a time limit.
    """
    together = [fault for fault in faults_with_variants() if is_grouped(fault)]
    alone = [[fault] for fault in faults_with_variants() if fault not in together]
    return [
        pytest.param(database, faults, id=f"{name_of(faults)}-{database}", marks=marks)
        for faults in (*alone, together)
    ]


def name_of(faults: list[Fault]) -> str:
    return faults[0].number if len(faults) == 1 else f"{len(faults)} at once"


def is_grouped(fault: Fault) -> bool:
    return fault.number in WAITING if is_slow() else runs_with_others(fault)


@pytest.mark.repeated
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("world", "faults"),
    [*groups_on("sqlite"), *groups_on("postgresql", pytest.mark.slow)],
    indirect=["world"],
)
def test_fault_has_the_result_of_the_catalogue(world: World, faults: list[Fault]) -> None:
    world.mark()
    limit = min(
        (v.rss_mb for fault in faults for v in fault.variants if v.rss_mb is not None), default=None
    )
    before = world.reset_peak() if limit is not None else 0

    choose = cases_of if is_slow() else examples_of
    cases = [case for fault in faults for case in choose(fault)]
    if all(runs_with_others(fault) or fault.number in WAITING_ALONE for fault in faults):
        # many wait for a timeout, so together they take as long as one
        results = at_once(lambda case: run_case(world, case, together=True), cases)
    else:
        results = [run_case(world, case) for case in cases]

    assert_all_results(world, results)
    if limit is not None:
        grown = (world.peak_kib() - before) / 1024
        assert grown < limit, f"{grown:.0f} MB more"


def assert_all_results(world: World, results: list[CaseResult]) -> None:
    """Check the invariants, and the rows and upstream requests of each case."""
    rows = world.assert_invariants(accepted=sum(each.accepted for each in results))
    for each in results:
        own = [row for row in rows if each.owns(row)]
        assert_rows(each.case, own)
        assert_upstream_requests(each, own, world)


def run_case(
    world: World, case: Case, rng: random.Random | None = None, *, together: bool = False
) -> CaseResult:
    """Run a case and check the client's response; ``rng`` decides how bytes are cut.

    ``together``: other cases run at the same time, so the pauses of the upstream are longer.
    """
    variant = case.variant
    model = f"{variant.route}-{case.dialect}-{case.id}"
    GATE.clear()
    scripts = turns(variant.upstream, case.dialect)
    if rng is not None:
        scripts = [recut(script, rng) for script in scripts]
    elif together:
        scripts = [with_longer_pauses(script) for script in scripts]
    world.upstream_of(variant.route).on(model, *scripts)
    client = RawClient(
        world.gateway.port,
        world.secret_of(variant.key),
        variant.body.encode("latin-1") or usual_request(model, case.mode, variant.request),
        variant.send,
        rng=rng,
    )
    if variant.scenario:
        fault_scenarios.SCENARIOS[variant.scenario](world, case, client, model)
    else:
        with client:
            client.run_script(variant.client)
    try:
        assert_seen(variant, case, client.reply)
    except AssertionError as error:
        raise AssertionError(f"{case.id}: {error}") from error
    return CaseResult(case, model, client.reply)


def assert_seen(variant: Variant, case: Case, reply: Reply | None) -> None:
    """Check that the client's response is the one in the catalogue (I3)."""
    if variant.sees == "checked by scenario":
        return
    if variant.sees in NO_RESPONSE:
        assert reply is None, reply
        return
    assert reply is not None, "the connection ended before a response"
    assert reply.headers["request-id"] == reply.headers["x-bridge-request-id"]
    for name, value in variant.headers.items():
        assert reply.headers.get(name, "") == value, (name, reply)
    if variant.sees == "whole":
        _assert_complete(variant, case, reply)
    elif variant.sees.startswith("error "):
        _assert_error_in_stream(variant, reply)
    else:
        _assert_error_status(variant, reply)


def _assert_complete(variant: Variant, case: Case, reply: Reply) -> None:
    assert reply.status == 200, reply.body
    if case.mode == "whole":
        message = fault_scenarios.json_of(reply)
        assert message["type"] == "message"
        found = "".join(block.get("text", "") for block in message["content"])
        reason = message["stop_reason"]
    else:
        reply = reply._replace(body=normalize_sse(reply.body))
        assert faults_of_bytes(reply.body, raw_tool_input=True) == []
        assert fault_scenarios.kinds(reply)[-1] == "message_stop"
        found, reason = fault_scenarios.text(reply), fault_scenarios.stop_reason(reply)
        assert not variant.pings or "ping" in fault_scenarios.kinds(reply)
    assert found == expected_text(variant), found[:200]
    assert reason == (variant.stop_reason or "end_turn")


def _assert_error_in_stream(variant: Variant, reply: Reply) -> None:
    """Check that open blocks are closed, an error follows, and no event marks a normal end."""
    assert reply.status == 200, reply.body
    assert faults_of_bytes(reply.body) == []
    kinds = fault_scenarios.kinds(reply)
    assert kinds[-1] == "error"
    assert not {"message_delta", "message_stop"} & set(kinds)
    error = fault_scenarios.events(reply)[-1]
    assert error["error"]["type"] == variant.sees.partition(" ")[2]
    assert error.get("request_id", "") in {reply.headers["request-id"], ""}
    assert variant.message in error["error"]["message"]
    assert fault_scenarios.text(reply) == expected_text(variant, "")
    assert not variant.pings or "ping" in kinds


def normalize_sse(body: bytes) -> bytes:
    """Normalize valid SSE encodings that the gateway passes through from an Anthropic upstream."""
    body = re.sub(rb"\r\n|\r", b"\n", body.removeprefix(b"\xef\xbb\xbf"))
    body = re.sub(rb"(?m)^: .*\n\n", b"", body)
    body = re.sub(rb"(?m)^data: \{\ndata: ", b"data: {", body)
    return re.sub(rb"(?m)^data:(?! )", b"data: ", body)


def expected_text(variant: Variant, usually: str = "".join(TEXTS)) -> str:
    """Return the text that the response must have."""
    if variant.letters is not None:
        return "w" * variant.letters
    if isinstance(variant.texts, int):
        return "".join(TEXTS[: variant.texts])
    return usually if variant.text is None else variant.text


def _assert_error_status(variant: Variant, reply: Reply) -> None:
    status, _, kind = variant.sees.partition(" ")
    assert reply.status == int(status), (reply.status, reply.body[:500])
    assert reply.headers["content-type"] == "application/json"
    body = fault_scenarios.json_of(reply)
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"] == reply.headers["request-id"]
    assert body["error"]["type"] == kind
    message = body["error"]["message"]
    assert variant.message in message
    assert len(message) <= 500
    assert not re.search(r"<|127\.0\.0\.1|https?://|sk-", message), message


def assert_rows(case: Case, rows: list[Row]) -> None:
    """Check the rows; ``row`` has ``outcome/status/usage/attempts`` for each row."""
    variant = case.variant
    if variant.row == "none":
        assert not rows, (case.id, rows)
        return
    found = [f"{r['outcome']}/{r['status']}/{usage_of(r)}/{len(r['attempts'])}" for r in rows]
    details = [(row["detail"], row["error_message"]) for row in rows]
    assert found == variant.row.split(", "), (case.id, details)
    found_columns = {name: rows[-1][name] for name in variant.row_has}
    assert found_columns == variant.row_has, case.id
    for row in rows:
        assert_row_is_consistent(
            row, completes=completes_response(variant.upstream), tokens=variant.tokens
        )
        if row["outcome"] in FAILURES:
            assert row["error_type"], case.id
            assert row["error_source"] in {"upstream", "gateway"}, case.id


def assert_upstream_requests(each: CaseResult, rows: list[Row], world: World) -> None:
    """Check the number of requests at the upstream (I2)."""
    expected = each.case.variant.upstream_requests
    if expected is None:
        expected = sum(len(row["attempts"]) for row in rows)
    requests = [one for one in world.requests_since_mark() if one.model == each.model]
    assert len(requests) == expected, (each.case.id, [one.path for one in requests])
