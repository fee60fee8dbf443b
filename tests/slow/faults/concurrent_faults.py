"""Faults that happen at the same time, with variants and timing chosen by a seed.

The seed decides the variant of each fault, how the bytes of client and upstream are cut into packets,
and the order of the clients. The expected result of a fault is the same as when it runs alone.
"""

import random
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from typing import TypeVar

from tests.fakes.upstreams.script_steps import Script, Send, Sleep, Step

from .catalogue import TABLES, Case, Fault, cases_of, faults_with_variants

T = TypeVar("T")
PAIRS = tomllib.loads((TABLES / "pairs.toml").read_text(encoding="utf-8"))
COMPANIONS: list[str] = PAIRS["companions"]
WAITING: list[str] = PAIRS["waiting"]
WAITING_ALONE: list[str] = PAIRS["waiting_alone"]
RUN_ALONE: dict[str, str] = PAIRS["alone"]
AT_ONCE = 8
PAUSE_S = 0.003
"""Maximum pause between two packets; the reader then often receives the first one alone."""
BREATH_S = 0.3
WHOLE_FROM = 65_536
"""Sizes from here on arrive in many packets anyway."""


def runs_with_others(fault: Fault) -> bool:
    return fault.number not in RUN_ALONE and not any(
        variant.scenario or variant.rss_mb is not None or "set gate" in variant.client
        for variant in fault.variants
    )


def concurrent_faults() -> list[Fault]:
    """Return the faults that may run concurrently with others."""
    return [fault for fault in faults_with_variants() if runs_with_others(fault)]


def random_case(fault: Fault, turn: int, rng: random.Random) -> Case:
    """Return one random case of the fault with a unique id."""
    case = rng.choice(cases_of(fault))
    return case._replace(id=f"{case.id}~{turn}")


def recut(script: Script, rng: random.Random) -> Script:
    """Return the same bytes with other cuts; pauses are longer because the gateway is busy."""
    steps_out: list[Step] = []
    for sent, steps in groupby(script, lambda step: isinstance(step, Send)):
        if sent:
            raw = b"".join(step.raw for step in steps if isinstance(step, Send))
            for packet in packets(raw, rng):
                steps_out += [Send(packet), Sleep(rng.random() * PAUSE_S)]
        else:
            steps_out += (Sleep(BREATH_S) if isinstance(step, Sleep) else step for step in steps)
    return steps_out


def with_longer_pauses(script: Script) -> Script:
    """Return the same script with pauses that a busy gateway notices."""
    return [
        Sleep(max(step.seconds, BREATH_S)) if isinstance(step, Sleep) else step for step in script
    ]


def packets(raw: bytes, rng: random.Random) -> Iterable[bytes]:
    """Cut ``raw`` into one to six pieces; none is empty."""
    if not 1 < len(raw) < WHOLE_FROM:
        return [raw]
    cuts = min(rng.randrange(6), len(raw) - 1)
    places = [0, *sorted(rng.sample(range(1, len(raw)), cuts)), len(raw)]
    return [raw[a:b] for a, b in pairwise(places)]


def at_once(work: Callable[[Case], T], cases: Iterable[Case]) -> list[T]:
    """Run ``work`` on all cases, some at a time; raise the first error."""
    with ThreadPoolExecutor(AT_ONCE) as crowd:
        return list(crowd.map(work, cases))
