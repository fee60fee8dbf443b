"""``reconcile``: the ledger beside a provider's export, money and each token class by itself."""

import io
import json
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command

from proxy.models import Upstream
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db

ANTHROPIC = (
    "usage_date_utc,model_version,api_key,workspace,usage_type,context_window,"
    "usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,"
    "usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens,"
    "web_search_count,inference_geo,speed\n"
)
OPENAI = (
    "start_time,end_time,project_id,num_model_requests,user_id,api_key_id,model,batch,"
    "input_tokens,output_tokens,input_cached_tokens\n"
)
COSTS = "start_time,end_time,amount_value,amount_currency,line_item,project_id\n"
NOON = 1_763_640_000 + 365 * 86_400  # 2026-11-20 12:00 UTC
USAGE = {"input": 100, "output": 50, "cache_read": 1000, "cache_write_5m": 0, "source": "reported"}


@pytest.fixture
def ledger(db):
    """Two requests of gpt-5.2 on the 20th, one on the 19th, and one of another upstream."""
    cast.price()
    for days in (0, 0, 1):
        cast.record(at=cast.NOON - timedelta(days=days), closing={"usage": USAGE})
    cast.record(opening={"upstream": "vllm"}, closing={"usage": USAGE, "upstream": "vllm"})
    cost = 3 * (Decimal(100) * Decimal("1.25") + 1000 * Decimal("0.125") + 500) / 10**6
    return str(cost)


@pytest.fixture
def told(tmp_path):
    """What ``reconcile`` says of exports with these texts, and its exit code."""

    def run(*texts, **options):
        files = []
        for number, text in enumerate(texts):
            files.append(str(tmp_path / f"export-{number}.csv"))
            (tmp_path / f"export-{number}.csv").write_text(text, encoding="utf-8-sig")
        out = io.StringIO()
        code = 0
        try:
            call_command("reconcile", *files, stdout=out, **{"upstream": ["openai"], **options})
        except SystemExit as end:
            code = int(end.code or 0)
        return out.getvalue(), code

    return run


def openai(*lines):
    return OPENAI + "".join(f"{at},{at + 86_400},p,{n},,,gpt-5.2,false,{whole},{out},{cached}\n"
                            for at, n, whole, out, cached in lines)  # fmt: skip


RIGHT = openai((NOON - 43_200, 2, 2200, 100, 2000), (NOON - 129_600, 1, 1100, 50, 1000))


def test_what_agrees_says_what_was_compared_and_what_was_not(ledger, told):
    said, code = told(RIGHT)

    assert code == 0
    assert "compared, each by itself: input, cache_read, output" in said
    assert (
        "NOT compared, the export does not tell it: cache_write_5m, cache_write_1h, amount" in said
    )
    assert "2026-11-19 until 2026-11-21 (UTC), openai" in said
    assert "0 figures differ, 3 agree" in said


def test_money_that_agrees_is_no_proof_of_tokens(ledger, told):
    costs = f'{COSTS}{NOON},{NOON + 1},{ledger},usd,"gpt-5.2, input",p\n'
    wrong = openai((NOON, 3, 3300, 150, 2000), (NOON - 86_400, 0, 0, 0, 0))

    said, code = told(wrong, costs, json=True)

    report = json.loads(said)
    assert code == 1
    assert report["compared"] == ["input", "cache_read", "output", "amount"]
    assert report["not_compared"] == ["cache_write_5m", "cache_write_1h"]
    assert [one["what"] for one in report["differences"]] == ["input", "cache_read"]
    assert report["differences"][0] == {
        "day": "all", "model": "gpt-5.2", "what": "input", "provider": "1,300", "ledger": "300",
        "difference": "-1,000 (-76.92 %)",
    }  # fmt: skip
    assert report["agree"] == 2


def test_anthropics_export_tells_every_class(ledger, told):
    line = "{},claude-x,k,Default,standard,≤ 200k,{},0,0,{},{},0,global,\n"
    export = ANTHROPIC + line.format("2026-11-20", 200, 2000, 100)
    export += line.format("2026-11-19", 100, 1000, 50)

    said, code = told(export, model=["claude-x=gpt-5.2"], all=True)

    assert code == 0
    assert (
        "compared, each by itself: input, cache_read, cache_write_5m, cache_write_1h, output"
        in said
    )
    assert "NOT compared, the export does not tell it: amount" in said
    assert "3,000" in said


def test_input_beside_anthropics_names_for_the_cache_has_none_of_it(ledger, told):
    wire = "date,model,input_tokens,cache_read_input_tokens,output_tokens\n"

    said, code = told(f"{wire}2026-11-20,gpt-5.2,200,2000,100\n2026-11-19,gpt-5.2,100,1000,50\n")

    assert code == 0
    assert "0 figures differ, 3 agree" in said


def test_input_of_which_nobody_knows_what_it_holds_is_not_compared(ledger, told):
    said, code = told("date,model,input_tokens,output_tokens\n2026-11-20,gpt-5.2,3300,150\n")

    assert code == 1  # the 19th lacks
    assert "compared, each by itself: output" in said
    assert "does not tell it: input, cache_read" in said


def test_an_upstream_that_is_none_of_ours_is_misuse(ledger, told):
    Upstream.objects.create(name="openai", dialect="chat", base_url="https://api.openai.com/v1")

    with pytest.raises(CommandError, match="'opnai' is none of ours; did you mean 'openai'") as no:
        told(RIGHT, upstream=["opnai"])

    assert no.value.returncode == 2


def test_a_day_by_itself_differs_where_the_sum_does_not(ledger, told):
    moved = openai((NOON, 1, 1100, 50, 1000), (NOON - 86_400, 2, 2200, 100, 2000))

    assert told(moved)[1] == 0
    said, code = told(moved, by_day=True)

    assert code == 1
    assert "2026-11-19" in said
    assert "6 figures differ" in said


def test_a_model_that_only_one_side_knows_is_a_difference(ledger, told):
    foreign = RIGHT + RIGHT.removeprefix(OPENAI).replace("gpt-5.2", "gpt-9")

    said, code = told(foreign)

    assert code == 1
    assert "gpt-9" in said
    assert "3 figures differ, 3 agree" in said


def test_a_cost_without_a_price_is_unknown_and_not_nothing(db, told):
    cast.record(closing={"usage": USAGE})
    costs = f"{COSTS}2026-11-20T00:00:00Z,,0.5,usd,gpt-5.2,p\n"

    said, code = told(costs)

    assert code == 1
    assert "unknown" in said
    assert "the ledger has 1 request without a price" in said


def test_what_is_estimated_is_said(db, told):
    cast.price()
    cast.record(closing={"usage": {**USAGE, "source": "estimated"}})

    said, _ = told(openai((NOON, 1, 1100, 50, 1000)))

    assert "tokens that no upstream reported, but we estimated" in said


def test_a_tolerance_is_in_per_cent(ledger, told):
    near = openai((NOON, 3, 3303, 150, 3000), (NOON - 86_400, 0, 0, 0, 0))

    assert told(near)[1] == 1
    assert told(near, tolerance=Decimal(1))[1] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("day,of,nothing\n1,2,3\n", "no column for the day"),
        ("date,tokens\n2026-11-20,3\n", "no column for the model"),
        ("date,model\n2026-11-20,m\n", "no column of tokens or money"),
        ("date,model,output_tokens\nsoon,m,3\n", "line 2: 'soon' is no day"),
        ("date,model,output_tokens\n2026-11-20,m,many\n", "output_tokens is 'many', not a number"),
        ("date,model,output_tokens\n", "the export has no line"),
        ("", "no column for the day"),
        ("date,model,cost_usd\n2020-01-01,m,1\n2026-01-01,m,1\n", "more than 400 days"),
    ],
)
def test_a_file_that_is_no_export_is_misuse(db, told, text, said):
    with pytest.raises(CommandError, match=said) as refused:
        told(text)

    assert refused.value.returncode == 2


def test_a_model_without_its_other_name_is_misuse(db, told):
    with pytest.raises(CommandError, match="THEIRS=OURS"):
        told(RIGHT, model=["gpt-5.2"])


def test_a_file_that_is_not_there_is_misuse(db, tmp_path):
    with pytest.raises(CommandError, match="No such file"):
        call_command("reconcile", str(tmp_path / "none.csv"), upstream=["openai"])
