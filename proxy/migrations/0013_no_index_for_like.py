"""Drop the indexes that Django makes on PostgreSQL for ``LIKE 'req_…%'``: nobody asks like that.

Each was one more to write for every request: of the rows, the transcripts and the seals.
"""

from django.db import migrations

TABLES = ["proxy_exchange", "proxy_transcript", "proxy_transcript_before", "proxy_seal"]


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor != "postgresql":
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            r"SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() "
            r"AND tablename = ANY(%s) AND (indexname LIKE '%%exchange\_id\_%%\_like' "
            r"OR indexname LIKE 'proxy\_exchange\_id\_%%\_like')",
            [TABLES],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP INDEX "{name}"')


class Migration(migrations.Migration):

    dependencies = [("proxy", "0012_policies_of_more_kinds")]

    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
