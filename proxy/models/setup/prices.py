"""Prices: what the tokens of a model cost at an upstream, from a day on."""

from typing import Any, Final

from django.core.validators import MinValueValidator
from django.db import models

from .upstreams import Upstream


def dollars(**options: Any) -> "models.DecimalField[Any, Any]":
    """Return a column for US dollars per million tokens."""
    return models.DecimalField(
        max_digits=14, decimal_places=6, validators=[MinValueValidator(0)], **options
    )


DIMENSIONS: Final = ("service_tier", "speed", "inference_geo")
"""What a provider may charge differently: the fields of ``usage`` with these names."""


FIGURES: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
"""The columns with amounts."""


def dimension() -> "models.CharField[str, str]":
    return models.CharField(max_length=32, blank=True, default="")


class Price(models.Model):
    """The price of a model from a day on, in US dollars per million tokens.

    A price is never overwritten: a new price is a row with a later ``since``. Each service tier,
    speed or region has prices of its own; empty is the standard one.
    """

    # null: the price applies to every upstream with this model, like the shipped prices
    upstream = models.ForeignKey(Upstream, null=True, blank=True, on_delete=models.CASCADE)
    model = models.CharField(max_length=200)
    service_tier = dimension()
    speed = dimension()
    inference_geo = dimension()
    since = models.DateField()
    input = dollars()
    output = dollars()
    # null in the next three fields: cached tokens cost as much as input tokens
    cache_read = dollars(null=True, blank=True)
    cache_write_5m = dollars(null=True, blank=True)
    cache_write_1h = dollars(null=True, blank=True)
    source = models.CharField(max_length=300, blank=True)
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["model", "-since"]
        constraints = [
            models.UniqueConstraint(
                fields=["upstream", "model", *DIMENSIONS, "since"],
                name="price_dated",
                nulls_distinct=False,
            ),
            *(
                models.CheckConstraint(
                    name=f"price_{name}",
                    condition=models.Q(**{f"{name}__gte": 0}) | models.Q(**{name: None}),
                )
                for name in FIGURES
            ),
        ]

    def __str__(self) -> str:
        return " ".join([self.model, *self.variant, f"since {self.since}"])

    @property
    def variant(self) -> list[str]:
        """The dimensions that are not standard, such as ``speed=fast``."""
        named = ((name, getattr(self, name)) for name in DIMENSIONS)
        return [f"{name}={value}" for name, value in named if value]
