"""Months that come back from the archive, and the files of their transcripts."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('proxy', '0006_all_teams'),
    ]

    operations = [
        migrations.AddField(
            model_name='archivedmonth',
            name='transcripts',
            field=models.PositiveBigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='archivedmonth',
            name='transcripts_sha256',
            field=models.CharField(blank=True, max_length=64),
        ),
        migrations.AddField(
            model_name='archivedmonth',
            name='transcripts_version',
            field=models.PositiveIntegerField(default=1),
        ),
        migrations.AlterField(
            model_name='archivedmonth',
            name='state',
            field=models.CharField(choices=[('writing', 'Writing'), ('archived', 'Archived'), ('removing', 'Removing'), ('removed', 'Removed'), ('restored', 'Restored')], default='writing', max_length=8),
        ),
    ]
