"""The factor for token estimates, from stored requests with reported input tokens."""

from datetime import UTC, datetime

import pytest

from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.maintenance.token_calibration import BOUNDS, HEADROOM, MIN_SAMPLES, factor_of
from proxy.models import Team, Transcript
from tests.proxy.ledger.conftest import drain_all
from tests.proxy.ledger.factories import NOON, body, closing, exchange_id, opening
from translator.anthropic.token_estimate import estimate_tokens

pytestmark = pytest.mark.django_db

TEXT = "A text whose tokens the upstream counts. " * 50
LARGE_TEXT = TEXT * 8
LONG_AGO = datetime.fromtimestamp(NOON - 3600, UTC)


@pytest.fixture
def write_samples(journal: Journal, own: JournalReader, team: Team):
    """Return a function to write requests whose reported tokens are ``ratio`` times the estimate."""
    numbers = iter(range(1000))

    def write(*ratios: float, text: str = TEXT, opened=None, **closed) -> None:
        for ratio in ratios:
            number = next(numbers)
            counted = int(
                ratio * estimate_tokens({"messages": [{"role": "user", "content": text}]})
            )
            usage = {"input": counted // 4, "cache_read": counted - counted // 4, "output": 1}
            journal.append_and_wait(opening(number, **{"body": body(text), **(opened or {})}))
            journal.append_and_wait(
                closing(number, usage={**usage, "source": "reported"}, **closed)
            )
        drain_all(own)

    return write


def factor(model: str = "gpt-5.2") -> float | None:
    return factor_of("openai", model, LONG_AGO)


def test_the_factor_covers_every_sample_with_headroom(write_samples):
    write_samples(*[1.5] * 9, 3.0)

    assert factor() == pytest.approx(3 * HEADROOM, abs=0.02)


def test_cached_input_is_counted(write_samples):
    write_samples(*[2.0] * MIN_SAMPLES)

    assert factor() == pytest.approx(2 * HEADROOM, abs=0.02)


def test_the_factor_is_below_one_for_high_estimates(write_samples):
    write_samples(*[0.7] * MIN_SAMPLES, text=LARGE_TEXT)

    assert factor() == pytest.approx(0.7 * HEADROOM, abs=0.02)


def test_small_requests_never_lower_the_factor_below_one(write_samples):
    write_samples(*[0.4] * MIN_SAMPLES)
    write_samples(*[0.7] * (MIN_SAMPLES - 1), text=LARGE_TEXT)

    assert factor() == 1.0


def test_small_requests_raise_the_factor(write_samples):
    write_samples(*[0.7] * MIN_SAMPLES, text=LARGE_TEXT)
    write_samples(1.5)

    assert factor() == pytest.approx(1.5 * HEADROOM, abs=0.02)


def test_too_few_samples_give_no_factor(write_samples):
    write_samples(*[2.0] * (MIN_SAMPLES - 1))

    assert factor() is None


@pytest.mark.parametrize(("ratio", "expected"), [(1.6, 1.6 * HEADROOM), (0.5, 1.0)])
def test_one_large_request_raises_the_factor_and_never_lowers_it(write_samples, ratio, expected):
    write_samples(0.2, 4.0)
    write_samples(ratio, text=LARGE_TEXT)

    assert factor() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    "other",
    [
        {"text": "short"},
        {"opened": {"body": None}},
        {"outcome": "upstream_error", "status": 502},
        {"model_upstream": "another"},
        {"upstream": "elsewhere"},
    ],
    ids=["too short", "no transcript", "failed", "model", "upstream"],
)
def test_unsuitable_rows_are_no_samples(write_samples, other):
    write_samples(*[2.0] * MIN_SAMPLES, **other)

    assert factor() is None


def test_rows_with_web_searches_are_no_samples(write_samples, journal: Journal, own: JournalReader):
    write_samples(*[2.0] * (MIN_SAMPLES - 1))
    usage = {"input": 90_000, "output": 1, "web_searches": 2, "source": "reported"}
    journal.append_and_wait(opening(900, body=body(TEXT)))
    journal.append_and_wait(closing(900, usage=usage))
    drain_all(own)

    assert factor() is None


def test_rows_with_estimated_input_are_no_samples(
    write_samples, journal: Journal, own: JournalReader
):
    write_samples(*[2.0] * (MIN_SAMPLES - 1))
    journal.append_and_wait(opening(900, body=body(TEXT)))
    journal.append_and_wait(
        closing(900, usage={"input": 9_000, "output": 1, "source": "estimated"})
    )
    drain_all(own)

    assert factor() is None


def test_a_broken_transcript_is_skipped(write_samples):
    write_samples(*[2.0] * (MIN_SAMPLES + 1))
    Transcript.objects.filter(pk=exchange_id(0)).update(manifest=b"broken")

    assert factor() == pytest.approx(2 * HEADROOM, abs=0.02)


@pytest.mark.parametrize(("ratio", "bound"), [(0.1, BOUNDS[0]), (20.0, BOUNDS[1])])
def test_the_factor_stays_within_bounds(write_samples, ratio, bound):
    write_samples(*[ratio] * MIN_SAMPLES, text=LARGE_TEXT)

    assert factor() == bound
