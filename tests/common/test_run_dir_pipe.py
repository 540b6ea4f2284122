"""A pipe in the place of a run's configuration, which another user may have put there: no command waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.errors import BadInputError
from services.config.root import load_config


def test_a_pipe_in_the_place_of_a_stored_configuration_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(BadInputError, match=r"config\.json: "):
        load_config(tmp_path, environment={})
