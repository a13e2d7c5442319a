"""What keeps a page safe, whatever its data hold: how data stand inside it, and what it may load and run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from markupsafe import Markup

# Other letters stay as they are, as escapes those outside of ASCII would take six bytes each; these could end the
# element or a line of a script, or are halves of letters, which UTF-8 cannot hold.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def page_mark(command: str) -> str:
    """The line by which a page of this command is told from the user's own pages."""
    return f'<meta name="generator" content="carl {command}">'


def embedded_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return Markup(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def content_policy(style: str, script: str, asks_its_server: bool = False) -> str:
    """No request may leave the page, except to its own server if it has one, and nothing but these two may run."""
    connect = " connect-src 'self';" if asks_its_server else ""
    return f"default-src 'none'; img-src data:;{connect} style-src {_hash(style)}; script-src {_hash(script)}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
