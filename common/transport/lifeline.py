"""What both ends of a lifeline agree on."""

from __future__ import annotations

import struct

PEERCRED = struct.Struct("3i")
"""SO_PEERCRED: pid, uid, gid."""
LAST_WORD = struct.Struct("<Q")
"""What a peer says before it closes in good order: how many messages it sent."""
