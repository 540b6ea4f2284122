"""One file read in a copy of this process, since a damaged file may end the process that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from common.apart import CopyEnded, Say, apart
from common.errors import BadInputError, IcestreamError, TransientError

Result = TypeVar("Result")


def in_a_copy(work: Callable[[], Result], kind: type[Result], name: str) -> Result:
    """Return what ``work`` returns, a model or dataclass of that ``kind``. Raises what ``work`` raises.

    Raises BadInputError that names the file if it ends the copy, and TransientError if something else does.
    """
    adapter: TypeAdapter[Result] = TypeAdapter(kind)

    def told(say: Say) -> None:
        try:
            say(json.dumps({"found": adapter.dump_python(work())}))
        except IcestreamError as error:
            say(json.dumps({"error": str(error), "is_bad": isinstance(error, BadInputError)}))

    try:
        lines = list(apart(told))
        answer = json.loads(lines[-1])
        if "error" in answer:
            raise (BadInputError if answer["is_bad"] else TransientError)(str(answer["error"]))
        return adapter.validate_python(answer["found"])
    except CopyEnded as ended:
        if not ended.is_own:
            raise TransientError(
                f"{name}: the process that read it was ended by {ended}: is there enough memory?"
            ) from None
        how = str(ended)
    except (ValueError, LookupError, TypeError, ValidationError):
        how = "without an answer"
    raise BadInputError(f"{name}: damaged: it ends the process that reads it ({how}); leave it out or write it anew")
