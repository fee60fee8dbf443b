"""Read /metrics as a Prometheus server does."""

from prometheus_client.parser import text_string_to_metric_families

from proxy.metrics.exposition import exposition


def samples_of(text: str) -> dict[str, float]:
    """Return the value of each sample by ``name{label="value",...}``, labels in order of names."""
    return {
        f"{sample.name}{{{labels_of(sample.labels)}}}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels_of(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))


def samples() -> dict[str, float]:
    return samples_of(exposition().decode())
