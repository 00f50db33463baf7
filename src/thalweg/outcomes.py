"""Outcomes: a number that compiled code can return, a name, and advice in words."""

import enum


class Outcome(enum.IntEnum):
    """Base of enumerations of outcomes; a member is ``NAME = number, "what it means and what to do next"``.

    Examples
    --------
    >>> class Weather(Outcome):
    ...     DRY = 0, "Nothing to do."
    ...     WET = 1, "Take an umbrella."
    >>> str(Weather(1)), Weather.WET.advice
    ('WET', 'Take an umbrella.')
    """

    advice: str

    def __new__(cls, number: int, advice: str = "") -> "Outcome":
        """Make a member from its number and its advice."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.advice = advice
        return member

    def __str__(self) -> str:
        return self.name

    def stored(self) -> dict[str, int]:
        """Return what a file holds of it."""
        return {"value": int(self)}
