"""``reconcile`` compares the ledger with a provider's export: cost and each token class."""

import io
import json
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command

from proxy.models import Upstream
from tests.proxy.admin import factories

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
    factories.price()
    for days in (0, 0, 1):
        factories.record(at=factories.NOON - timedelta(days=days), closing={"usage": USAGE})
    factories.record(opening={"upstream": "vllm"}, closing={"usage": USAGE, "upstream": "vllm"})
    cost = 3 * (Decimal(100) * Decimal("1.25") + 1000 * Decimal("0.125") + 500) / 10**6
    return str(cost)


@pytest.fixture
def reconcile(tmp_path):
    """Run ``reconcile`` on files with these texts; return its output and exit code."""

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


def openai_export(*lines):
    return OPENAI + "".join(f"{at},{at + 86_400},p,{n},,,gpt-5.2,false,{whole},{out},{cached}\n"
                            for at, n, whole, out, cached in lines)  # fmt: skip


MATCHING = openai_export((NOON - 43_200, 2, 2200, 100, 2000), (NOON - 129_600, 1, 1100, 50, 1000))


def test_equal_figures_list_what_was_compared_and_what_was_not(ledger, reconcile):
    output, code = reconcile(MATCHING)

    assert code == 0
    assert "compared separately: input, cache_read, output" in output
    assert "NOT compared, missing in the export: cache_write_5m, cache_write_1h, amount" in output
    assert "2026-11-19 until 2026-11-21 (UTC), openai" in output
    assert "0 figures differ, 3 agree" in output


def test_equal_cost_with_different_tokens_is_a_difference(ledger, reconcile):
    costs = f'{COSTS}{NOON},{NOON + 1},{ledger},usd,"gpt-5.2, input",p\n'
    wrong = openai_export((NOON, 3, 3300, 150, 2000), (NOON - 86_400, 0, 0, 0, 0))

    output, code = reconcile(wrong, costs, json=True)

    report = json.loads(output)
    assert code == 1
    assert report["compared"] == ["input", "cache_read", "output", "amount"]
    assert report["not_compared"] == ["cache_write_5m", "cache_write_1h"]
    assert [one["what"] for one in report["differences"]] == ["input", "cache_read"]
    assert report["differences"][0] == {
        "day": "all", "model": "gpt-5.2", "what": "input", "provider": "1,300", "ledger": "300",
        "difference": "-1,000 (-76.92 %)",
    }  # fmt: skip
    assert report["agree"] == 2


def test_an_anthropic_export_compares_every_token_class(ledger, reconcile):
    line = "{},claude-x,k,Default,standard,≤ 200k,{},0,0,{},{},0,global,\n"
    export = ANTHROPIC + line.format("2026-11-20", 200, 2000, 100)
    export += line.format("2026-11-19", 100, 1000, 50)

    output, code = reconcile(export, model=["claude-x=gpt-5.2"], all=True)

    assert code == 0
    assert (
        "compared separately: input, cache_read, cache_write_5m, cache_write_1h, output" in output
    )
    assert "NOT compared, missing in the export: amount" in output
    assert "3,000" in output


def test_input_next_to_anthropics_cache_columns_excludes_cached_tokens(ledger, reconcile):
    header = "date,model,input_tokens,cache_read_input_tokens,output_tokens\n"

    output, code = reconcile(
        f"{header}2026-11-20,gpt-5.2,200,2000,100\n2026-11-19,gpt-5.2,100,1000,50\n"
    )

    assert code == 0
    assert "0 figures differ, 3 agree" in output


def test_ambiguous_input_is_not_compared(ledger, reconcile):
    output, code = reconcile("date,model,input_tokens,output_tokens\n2026-11-20,gpt-5.2,3300,150\n")

    assert code == 1  # the export has no line for the 19th
    assert "compared separately: output" in output
    assert "missing in the export: input, cache_read" in output


def test_an_unknown_upstream_is_a_usage_error(ledger, reconcile):
    Upstream.objects.create(name="openai", dialect="chat", base_url="https://api.openai.com/v1")

    with pytest.raises(CommandError, match="no upstream 'opnai'; did you mean 'openai'") as error:
        reconcile(MATCHING, upstream=["opnai"])

    assert error.value.returncode == 2


def test_days_can_differ_while_the_sum_is_equal(ledger, reconcile):
    moved = openai_export((NOON, 1, 1100, 50, 1000), (NOON - 86_400, 2, 2200, 100, 2000))

    assert reconcile(moved)[1] == 0
    output, code = reconcile(moved, by_day=True)

    assert code == 1
    assert "2026-11-19" in output
    assert "6 figures differ" in output


def test_a_model_on_one_side_only_is_a_difference(ledger, reconcile):
    foreign = MATCHING + MATCHING.removeprefix(OPENAI).replace("gpt-5.2", "gpt-9")

    output, code = reconcile(foreign)

    assert code == 1
    assert "gpt-9" in output
    assert "3 figures differ, 3 agree" in output


def test_a_cost_without_a_price_is_unknown_and_not_zero(db, reconcile):
    factories.record(closing={"usage": USAGE})
    costs = f"{COSTS}2026-11-20T00:00:00Z,,0.5,usd,gpt-5.2,p\n"

    output, code = reconcile(costs)

    assert code == 1
    assert "unknown" in output
    assert "the ledger has 1 request without a price" in output


def test_estimated_tokens_are_reported(db, reconcile):
    factories.price()
    factories.record(closing={"usage": {**USAGE, "source": "estimated"}})

    output, _ = reconcile(openai_export((NOON, 1, 1100, 50, 1000)))

    assert "tokens that the gateway estimated" in output


def test_a_tolerance_is_in_percent(ledger, reconcile):
    near = openai_export((NOON, 3, 3303, 150, 3000), (NOON - 86_400, 0, 0, 0, 0))

    assert reconcile(near)[1] == 1
    assert reconcile(near, tolerance=Decimal(1))[1] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day,of,nothing\n1,2,3\n", "no column for the day"),
        ("date,tokens\n2026-11-20,3\n", "no column for the model"),
        ("date,model\n2026-11-20,m\n", "no column of tokens or money"),
        ("date,model,output_tokens\nsoon,m,3\n", "line 2: 'soon' is no day"),
        ("date,model,output_tokens\n2026-11-20,m,many\n", "output_tokens is 'many', not a number"),
        ("date,model,output_tokens\n", "the export has no rows"),
        ("", "no column for the day"),
        ("date,model,cost_usd\n2020-01-01,m,1\n2026-01-01,m,1\n", "more than 400 days"),
        (f"date,model,cost_usd\n2026-01-01,{'m' * 200_000},1\n", "field larger than field limit"),
    ],
)
def test_an_invalid_export_file_is_a_usage_error(db, reconcile, text, message):
    with pytest.raises(CommandError, match=message) as error:
        reconcile(text)

    assert error.value.returncode == 2


def test_a_model_option_without_equals_sign_is_a_usage_error(db, reconcile):
    with pytest.raises(CommandError, match="THEIRS=OURS"):
        reconcile(MATCHING, model=["gpt-5.2"])


def test_a_missing_file_is_a_usage_error(db, tmp_path):
    with pytest.raises(CommandError, match="No such file"):
        call_command("reconcile", str(tmp_path / "none.csv"), upstream=["openai"])
