"""Faults that happen at the same time, each told in a way that a seed chooses.

A seed decides which play of a fault it is, where the bytes of client and upstream are cut into
packets, and who comes when. What must come of a fault is the same as when it is alone.
"""

import random
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from typing import TypeVar

from tests.fakes.steps import Script, Send, Sleep, Step

from .catalogue import HERE, Case, Fault, cases_of, played_faults

T = TypeVar("T")
PAIRS = tomllib.loads((HERE / "pairs.toml").read_text(encoding="utf-8"))
COMPANIONS: list[str] = PAIRS["companions"]
ALONE: dict[str, str] = PAIRS["alone"]
AT_ONCE = 8
PAUSE_S = 0.003
"""At most so long between two packets: enough for the reader to get the first one alone."""
BREATH_S = 0.3
WHOLE_FROM = 65_536
"""Bytes that come in many packets anyhow."""


def bears_company(fault: Fault) -> bool:
    return fault.number not in ALONE and not any(
        play.story or play.rss_mb is not None or "let go" in play.client for play in fault.plays
    )


def sociable() -> list[Fault]:
    """Those that may happen beside others."""
    return [fault for fault in played_faults() if bears_company(fault)]


def one_of(fault: Fault, turn: int, chance: random.Random) -> Case:
    """One of its plays, under a name of its own."""
    case = chance.choice(cases_of(fault))
    return case._replace(id=f"{case.id}~{turn}")


def retold(script: Script, chance: random.Random) -> Script:
    """The same bytes, cut elsewhere; pauses are long enough for a gateway with others to serve."""
    told: list[Step] = []
    for sent, steps in groupby(script, lambda step: isinstance(step, Send)):
        if sent:
            raw = b"".join(step.raw for step in steps if isinstance(step, Send))
            for packet in packets(raw, chance):
                told += [Send(packet), Sleep(chance.random() * PAUSE_S)]
        else:
            told += (Sleep(BREATH_S) if isinstance(step, Sleep) else step for step in steps)
    return told


def packets(raw: bytes, chance: random.Random) -> Iterable[bytes]:
    """``raw`` in one to six pieces, cut anywhere; none is empty."""
    if not 1 < len(raw) < WHOLE_FROM:
        return [raw]
    wanted = min(chance.randrange(6), len(raw) - 1)
    places = [0, *sorted(chance.sample(range(1, len(raw)), wanted)), len(raw)]
    return [raw[a:b] for a, b in pairwise(places)]


def at_once(work: Callable[[Case], T], cases: Iterable[Case]) -> list[T]:
    """Do it for all, some at a time, in this order; raises what the first of them raised."""
    with ThreadPoolExecutor(AT_ONCE) as crowd:
        return list(crowd.map(work, cases))
