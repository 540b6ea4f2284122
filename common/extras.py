"""Optional packages: the one message of a missing one."""

from __future__ import annotations

from common.errors import BadInputError


def missing_extra(what: str, extra: str, otherwise: str = "") -> BadInputError:
    """Error of a feature whose optional packages are not installed, with the command that installs them.

    ``otherwise``: what to do without them, after "or".
    """
    or_else = f", or {otherwise}" if otherwise else ""
    # Not by the package's name alone: in an index of packages that may be somebody else's.
    return BadInputError(f"{what} needs: pip install '.[{extra}]' (in the clone){or_else}")
