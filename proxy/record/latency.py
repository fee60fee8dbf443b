"""Latencies as counts by bucket, so that percentiles of any group can be added up.

Bucket ``n`` holds durations in ``(BASE ** (n - 1), BASE ** n]`` milliseconds; a percentile read
from it is off by at most 5 %. Averages of percentiles are wrong; sums of buckets are not.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

BASE: Final = 1.1
METRICS: Final = ("ttft_ms", "total_ms", "upstream_ms", "overhead_ms")

Sketch = dict[str, dict[str, int]]  # metric -> bucket (a string: the database keeps it as JSON)


def bucket_of(ms: float) -> int:
    return 0 if ms <= 1 else math.ceil(round(math.log(ms, BASE), 9))


def value_of(bucket: int) -> float:
    """The middle of a bucket, in milliseconds."""
    return 1.0 if bucket <= 0 else 2 * BASE**bucket / (1 + BASE)


def merged(sketches: Iterable[Mapping[str, Mapping[str, int]]], sign: int = 1) -> Sketch:
    """The sum of sketches; buckets that come to nothing are left out."""
    total: Sketch = {}
    for sketch in sketches:
        for metric, buckets in sketch.items():
            sums = total.get(metric)
            if sums is None:
                sums = total[metric] = {}
            for bucket, requests in buckets.items():  # of the widest reports, the longest loop
                sums[bucket] = sums.get(bucket, 0) + sign * requests
    kept = {metric: {b: n for b, n in sums.items() if n} for metric, sums in total.items()}
    return {metric: buckets for metric, buckets in kept.items() if buckets}


def percentile(buckets: Mapping[str, int], fraction: float) -> float | None:
    """Milliseconds below which that fraction lies; None when nothing was measured."""
    wanted = fraction * sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets, key=int):
        seen += buckets[bucket]
        if seen >= wanted:
            return value_of(int(bucket))
    return None
