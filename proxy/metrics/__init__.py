"""What the gateway does, in numbers for Prometheus, summed over all workers of a node."""
