import re
from pathlib import Path

import pytest

from common.errors import BadInputError
from workloads.base.dataset import prepare_folder, share

OWN_FILE, OWN_FOLDER = re.compile(r"part_\d+\.data"), re.compile("parts")


def prepare(out: Path, *, overwrite: bool) -> None:
    prepare_folder(out, overwrite=overwrite, own_file=OWN_FILE, own_folder=OWN_FOLDER, content="parts of a test")


@pytest.mark.parametrize(("total", "num_files"), [(10, 3), (2, 5), (0, 2), (9, 9)])
def test_shares_are_equal_but_for_a_remainder_and_nothing_is_lost(total: int, num_files: int) -> None:
    shares = [share(total, num_files, index) for index in range(num_files)]
    assert sum(shares) == total
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match=r"file/a: .*/file is no folder; choose another place"):
        prepare(tmp_path / "file" / "a", overwrite=False)


def test_own_files_and_folders_are_deleted_on_request_only(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part_1.data").write_text("old")
    with pytest.raises(BadInputError, match=r"not empty: .* --force"):
        prepare(tmp_path, overwrite=False)
    assert (tmp_path / "parts" / "part_1.data").exists()

    (tmp_path / "mine").mkdir()
    prepare(tmp_path, overwrite=True)
    prepare(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_with_a_foreign_file_among_them_nothing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "part_1.data").write_text("old")
    (tmp_path / "part_1.data.bak").write_text("mine")
    with pytest.raises(BadInputError, match=r"no parts of a test, such as part_1\.data\.bak"):
        prepare(tmp_path, overwrite=True)

    assert len(list(tmp_path.iterdir())) == 2
