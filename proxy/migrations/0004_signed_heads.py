from django.db import migrations, models


class Migration(migrations.Migration):
    """Add what links of the hash chain record besides rows, and their signatures."""

    dependencies = [("proxy", "0003_price_dimensions")]

    operations = [
        migrations.AddField(
            "hashchainlink", "kind", models.CharField(blank=True, default="", max_length=16),
            preserve_default=False,
        ),
        migrations.AddField(
            "hashchainlink", "note", models.CharField(blank=True, default="", max_length=200),
            preserve_default=False,
        ),
        migrations.AddField("hashchainlink", "signature", models.BinaryField(max_length=64, null=True)),
    ]  # fmt: skip
