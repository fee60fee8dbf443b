"""What is learned of a tokenizer from requests whose tokens its upstream counted."""

from datetime import UTC, datetime

import pytest

from proxy.models import Team, Transcript
from proxy.record.calibration import BOUNDS, ENOUGH, HEADROOM, factor_of
from proxy.record.drainer import Source
from proxy.record.spool import Spool
from translator.estimate import estimate_tokens

from .conftest import drain_all
from .making import NOON, body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db

SAID = "Words that are counted by whoever sells them. " * 50
LONG_AGO = datetime.fromtimestamp(NOON - 3600, UTC)


@pytest.fixture
def told(spool: Spool, source: Source, team: Team):
    """Post requests whose upstream counted ``ratio`` times what we estimate."""
    numbers = iter(range(1000))

    def post(*ratios: float, said: str = SAID, opened=None, **closed) -> None:
        for ratio in ratios:
            number = next(numbers)
            counted = int(
                ratio * estimate_tokens({"messages": [{"role": "user", "content": said}]})
            )
            usage = {"input": counted // 4, "cache_read": counted - counted // 4, "output": 1}
            spool.append(opening(number, **{"body": body(said), **(opened or {})}))
            spool.append(closing(number, usage={**usage, "source": "reported"}, **closed))
        drain_all(source)

    return post


def learned(model: str = "gpt-5.2") -> float | None:
    return factor_of("openai", model, LONG_AGO)


def test_it_is_what_nine_of_ten_had_and_a_little_more(told):
    told(*[1.5] * 9, 3.0)

    assert learned() == pytest.approx(1.5 * HEADROOM, abs=0.02)


def test_what_is_read_from_a_cache_was_read_all_the_same(told):
    told(*[2.0] * ENOUGH)

    assert learned() == pytest.approx(2 * HEADROOM, abs=0.02)


def test_an_estimate_that_is_always_too_high_comes_down(told):
    told(*[0.7] * ENOUGH)

    assert learned() == pytest.approx(0.7 * HEADROOM, abs=0.02)


def test_nothing_is_learned_from_a_few(told):
    told(*[2.0] * (ENOUGH - 1))

    assert learned() is None


@pytest.mark.parametrize(
    "other",
    [
        {"said": "short"},
        {"opened": {"body": None}},
        {"outcome": "upstream_error", "status": 502},
        {"model_upstream": "another"},
        {"upstream": "elsewhere"},
    ],
    ids=["little beside the server's own", "no words kept", "failed", "model", "upstream"],
)
def test_others_teach_nothing(told, other):
    told(*[2.0] * ENOUGH, **other)

    assert learned() is None


def test_searches_add_to_the_input_unseen(told, spool: Spool, source: Source):
    told(*[2.0] * (ENOUGH - 1))
    usage = {"input": 90_000, "output": 1, "web_searches": 2, "source": "reported"}
    spool.append(opening(900, body=body(SAID)))
    spool.append(closing(900, usage=usage))
    drain_all(source)

    assert learned() is None


def test_what_was_only_estimated_teaches_nothing(told, spool: Spool, source: Source):
    told(*[2.0] * (ENOUGH - 1))
    spool.append(opening(900, body=body(SAID)))
    spool.append(closing(900, usage={"input": 9_000, "output": 1, "source": "estimated"}))
    drain_all(source)

    assert learned() is None


def test_a_broken_transcript_is_passed_over(told):
    told(*[2.0] * (ENOUGH + 1))
    Transcript.objects.filter(pk=exchange_id(0)).update(manifest=b"broken")

    assert learned() == pytest.approx(2 * HEADROOM, abs=0.02)


@pytest.mark.parametrize(("ratio", "bound"), [(0.1, BOUNDS[0]), (20.0, BOUNDS[1])])
def test_it_stays_within_bounds(told, ratio, bound):
    told(*[ratio] * ENOUGH)

    assert learned() == bound
