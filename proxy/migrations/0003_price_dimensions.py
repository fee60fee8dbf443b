"""Add the dimensions of prices: service tier, speed and region; and the iterations of a row."""

from django.db import migrations, models

DIMENSION = models.CharField(blank=True, default="", max_length=32)


class Migration(migrations.Migration):
    dependencies = [("proxy", "0002_model_capabilities")]

    operations = [
        *(
            migrations.AddField(model, name, DIMENSION)
            for model, names in (
                ("price", ("service_tier", "speed", "inference_geo")),
                ("exchange", ("speed", "inference_geo")),
            )
            for name in names
        ),
        migrations.AddField("exchange", "iterations", models.JSONField(default=list)),
        migrations.RemoveConstraint("price", "price_dated"),
        migrations.AddConstraint(
            "price",
            models.UniqueConstraint(
                fields=("upstream", "model", "service_tier", "speed", "inference_geo", "since"),
                name="price_dated",
                nulls_distinct=False,
            ),
        ),
    ]
