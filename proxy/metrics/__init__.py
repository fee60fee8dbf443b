"""Prometheus metrics of the gateway, summed over all workers of a node."""
