"""Workloads: what the stream carries and the models that learn from it, a folder each."""

import os
from pathlib import Path
from pkgutil import extend_path


def _places(own: list[str]) -> list[str]:
    """Folders with workloads: ``own``, and those that sys.path adds. The current folder only if PYTHONPATH names it in
    full: an empty entry there, as in PYTHONPATH=$PYTHONPATH:/my/lib, would run whatever lies where one happens to be.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = [folder for folder in extend_path(own, __name__) if folder not in own]
    around = {folder: Path(folder).parent for folder in found}
    return [*own, *(one for one in found if str(around[one]) in named or not around[one].samefile(os.curdir))]


__path__ = _places(list(__path__))
