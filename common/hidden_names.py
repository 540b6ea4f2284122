"""Names of hidden and unfinished files, which directories and globs leave out.

Names that begin with "." or "_" are no inputs, as in pyarrow.dataset, Hive and Spark: other programs write unfinished
files and their own notes under such names. A glob that spells the character matches them, and a file named by itself is
read whatever its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.redact import shown

HIDDEN = (".", "_")
"""First characters of such names."""


def told(text: str, left_out: Sequence[str]) -> str:
    """Return the sentence on what was left out of an input."""
    return (
        f'{shown(text)}: left out {len(left_out)} with a name that begins with "." or "_", the first is'
        f" {shown(min(left_out))}; name a file by itself to read it"
    )
