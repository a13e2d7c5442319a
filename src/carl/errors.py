"""What goes wrong because of what the user gave, as opposed to a fault of ours."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class UserError(ValueError):
    """One line that names the value, the rule and the remedy; the command line shows it and exits with 2."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known word nearest to `word`, or a list of all if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; use one of: {', '.join(names)}"


def first_line(error: Exception, otherwise: str = "") -> str:
    """The first line of what an error says; if it says nothing, `otherwise`, or else the name of its kind."""
    return (str(error).strip().splitlines() or [otherwise or type(error).__name__])[0]


def one_line(text: str) -> str:
    """`text` with escapes for whatever would end a line or change a terminal, for lists with one name per line."""
    return re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda at: ascii(at[0])[1:-1], text)


def printable(text: str) -> str:
    """`text` with everything that a terminal would act on as an escape such as \\x1b: names may hold any characters."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
