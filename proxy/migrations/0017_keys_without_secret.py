"""A key without a secret has no digest at all; those that have one that can be guessed lose it."""

from django.db import migrations, models
from django.db.models import F


def close(apps, schema_editor):
    keys = apps.get_model("proxy", "ApiKey").objects.using(schema_editor.connection.alias)
    if keys.filter(prefix="").update(digest=None):
        revisions = apps.get_model("proxy", "Revision").objects.using(schema_editor.connection.alias)
        revisions.update(number=F("number") + 1)  # nodes that run read their keys again


class Migration(migrations.Migration):

    dependencies = [
        ('proxy', '0016_when_client_leaves'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='dropped',
            field=models.BooleanField(default=False, editable=False),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='digest',
            field=models.BinaryField(editable=False, max_length=32, null=True, unique=True),
        ),
        migrations.RunPython(close, migrations.RunPython.noop, elidable=False),
    ]
