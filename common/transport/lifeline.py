"""Constants shared by both ends of a lifeline."""

from __future__ import annotations

import struct

PEERCRED = struct.Struct("3i")
"""Format of SO_PEERCRED: pid, uid, gid."""
LAST_WORD = struct.Struct("<Q")
"""Format of a peer's last bytes before it closes in good order: its number of sent messages."""
