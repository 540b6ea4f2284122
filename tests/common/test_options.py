"""Seeds: whole numbers, and nothing that Python takes for one."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import BadInputError
from common.options import checked_seed


@pytest.mark.parametrize("seed", [True, False, 1.0, "1", None, np.True_])
def test_what_is_no_whole_number_is_refused_as_a_seed(seed: object) -> None:
    with pytest.raises(BadInputError, match=r"expected a whole number$"):
        checked_seed(seed)


def test_whole_numbers_of_any_kind_are_seeds() -> None:
    assert checked_seed(np.int64(3)) == checked_seed(3) == 3
    with pytest.raises(BadInputError, match="seed = -3: must not be negative"):
        checked_seed(-3)
