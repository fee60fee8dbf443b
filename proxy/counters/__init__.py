"""Counters that several processes share: budget spending, rate limit states, stored responses."""
