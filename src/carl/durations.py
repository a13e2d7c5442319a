"""How long something takes, in words."""

from __future__ import annotations


def in_words(seconds: float, units: tuple[str, str, str] = (" h", " min", " s"), gap: str = " ") -> str:
    """90 -> '1 min 30 s', with other names for hours, minutes and seconds if they are given."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    hour, minute, second = units
    if hours:
        return f"{hours}{hour}{gap}{minutes:02d}{minute}"
    return f"{minutes}{minute}{gap}{rest:02d}{second}" if minutes else f"{rest}{second}"
