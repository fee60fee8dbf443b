"""Counters that several processes share: what is spent of budgets, and what limits allow."""
