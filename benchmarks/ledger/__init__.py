"""Benchmarks of the ledger: cost, latency, size, reports, outages and kills."""
