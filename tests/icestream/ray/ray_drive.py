"""`icestream ray` with other nodes, or another patience: ray_drive.py ADDRESS FIELDS, those of a RaySession as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from icestream.commands.ray.session import RaySession

fields = json.loads(sys.argv[2])
paths = {name: Path(fields.pop(name)) for name in ("shared", "run_dir")}
sys.exit(RaySession(**fields, **paths).run(sys.argv[1]))
