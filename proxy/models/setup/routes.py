"""Routes: to which upstreams and models the requests for a model name are sent."""

from django.core.exceptions import ValidationError
from django.db import models

from .columns import Conditions, TypedJSON
from .keys import Team
from .upstreams import Upstream


class Route(models.Model):
    """A model name or glob, and the targets of requests for matching models.

    Exact names win over globs; among globs, the lowest ``position`` wins.
    """

    model = models.CharField(max_length=200, help_text='The model name in requests: "claude-*".')
    # null: the route is for all teams
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE)
    position = models.PositiveIntegerField(default=0)
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["position", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "team"], name="route_model_team", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return self.model

    def clean(self) -> None:
        """Raise ValidationError if there is another route for the same model name and team."""
        twin = Route.objects.filter(model=self.model, team=self.team).exclude(pk=self.pk).first()
        if twin is not None:
            whose = f"team {self.team}" if self.team else "all teams"
            where = "bridge.toml" if twin.managed else "the admin"
            raise ValidationError(
                f"model {self.model!r} has a route for {whose} already: "
                f"the one at position {twin.position}, from {where}"
            )


class RouteTarget(models.Model):
    """An upstream and model to which a route sends requests.

    If it fails, the next target is tried, but only before the client got the first byte.
    """

    route = models.ForeignKey(Route, on_delete=models.CASCADE, related_name="targets")
    upstream = models.ForeignKey(Upstream, on_delete=models.CASCADE)
    # If empty, the upstream gets the model that the client sent.
    model = models.CharField(max_length=200, blank=True)
    weight = models.PositiveIntegerField(default=1)
    position = models.PositiveIntegerField(default=0)
    when = TypedJSON(
        Conditions,
        verbose_name="takes only requests with",
        help_text="The requests for which the target is used; empty: all.",
    )

    class Meta:
        verbose_name = "target"
        ordering = ["position", "id"]

    def __str__(self) -> str:
        return f"{self.upstream} {self.model or '*'}"
