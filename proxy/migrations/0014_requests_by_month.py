"""On PostgreSQL, requests in a table for each month; today's table becomes the first one."""

from datetime import UTC, datetime

from django.db import migrations

from proxy.record.partitions import convert_requests


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        with schema_editor.connection.cursor() as cursor:
            convert_requests(cursor, datetime.now(UTC))


class Migration(migrations.Migration):

    dependencies = [("proxy", "0013_no_index_for_like")]

    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
