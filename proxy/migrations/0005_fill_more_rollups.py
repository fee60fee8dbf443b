"""Rows that are there already are added up for the new tables by ``proxy/record/upgrades.py``.

That is code of today: it runs when the schema is that of today, after the last migration.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("proxy", "0004_more_rollups_and_exports")]
    operations: list[migrations.RunPython] = []
