"""Latency histograms: numbers of requests by bucket of duration.

Percentiles of several groups cannot be combined, but their histograms can be added, and percentiles
can be computed from the sum. Bucket ``n`` counts durations in ``(BASE ** (n - 1), BASE ** n]``
milliseconds, so a percentile computed from a histogram is off by at most 5 %.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

BASE: Final = 1.1
METRICS: Final = ("ttft_ms", "total_ms", "upstream_ms", "overhead_ms")

# metric -> bucket -> number of requests; a bucket is a string, like every key in JSON.
Histograms = dict[str, dict[str, int]]


def bucket_of(ms: float) -> int:
    """Return the bucket of a duration in milliseconds."""
    return 0 if ms <= 1 else math.ceil(round(math.log(ms, BASE), 9))


def value_of(bucket: int) -> float:
    """Return the middle of a bucket in milliseconds."""
    return 1.0 if bucket <= 0 else 2 * BASE**bucket / (1 + BASE)


def merge_histograms(
    histograms: Iterable[Mapping[str, Mapping[str, int]]], sign: int = 1
) -> Histograms:
    """Return the sum of the histograms; ``sign=-1`` negates it. Buckets of zero are left out."""
    total: Histograms = {}
    for histogram in histograms:
        for metric, buckets in histogram.items():
            sums = total.get(metric)
            if sums is None:
                sums = total[metric] = {}
            for bucket, requests in buckets.items():  # large reports spend most time in this loop
                sums[bucket] = sums.get(bucket, 0) + sign * requests
    nonzero = {metric: {b: n for b, n in sums.items() if n} for metric, sums in total.items()}
    return {metric: buckets for metric, buckets in nonzero.items() if buckets}


def percentile(buckets: Mapping[str, int], fraction: float) -> float | None:
    """Return the percentile in milliseconds (``fraction`` 0.95: p95); None if there is no value."""
    target = fraction * sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets, key=int):
        seen += buckets[bucket]
        if seen >= target:
            return value_of(int(bucket))
    return None
