"""A clock that a test sets, for code that is given its clock."""


class Clock:
    """Return ``at``, in Unix or monotonic seconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at
