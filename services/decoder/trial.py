"""Trial of a unit with which a decoder has died: its parts are read one at a time in a copy of this process.

The part that ends the copy is the bad one, and the events of the others live. What can't be read without ending it is
found again by Decode, which names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress

from common.apart import CopyEnded, Say, apart
from common.files.by_content import ContentReader
from common.files.reader import Beat
from common.files.rows import BadRowsError
from common.input_errors import MachineError
from common.messages import Part
from services.decoder.decode import Decode

_IS_READ = "read"
_BEAT = "beat"


class TrialEnded(Exception):
    """Error: the copy was ended from outside, which says nothing of a part."""


def parts_that_end_a_process(parts: Sequence[Part], decode: Decode, beat: Beat) -> dict[Part, str]:
    """Return the parts that end a process which reads them, with the reason. Raises TrialEnded, OSError."""
    found: dict[Part, str] = {}
    waiting = deque(parts)
    while waiting:
        how = "without a word"
        try:
            for said in apart(lambda say: _read_each(list(waiting), decode, say)):
                if said == _IS_READ and waiting:
                    waiting.popleft()
                beat()
        except CopyEnded as ended:
            if not ended.is_own:
                raise TrialEnded(f"the process that tries its parts was ended by {ended}") from None
            how = str(ended)
        if waiting:
            part = waiting.popleft()
            found[part] = f"{part.name}: row group {part.row_group} ends the process that decodes it ({how})"
    return found


def _read_each(parts: Sequence[Part], decode: Decode, say: Say) -> None:
    """Read the parts in the copy of the process: with a reader of its own, since it shares the open files."""
    with closing(ContentReader(decode.workload)) as reader:
        for part in parts:
            with suppress(BadRowsError, MachineError, MemoryError, OSError):
                reader.read([part], lambda: say(_BEAT), large_above=decode.stream.outlier_above)
            say(_IS_READ)
