from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hdf5_files import write_hdf5
from muon_files import make_events, write_events
from neutrino_files import events_in, expected, import_with, neutrinos, write_batch, write_flat, write_kaggle

from common.errors import BadInputError


def data_set(folder: Path) -> Path:
    return write_kaggle(folder, {1: neutrinos([3, 4]), 2: neutrinos([5], 1, first_id=100)})


def test_an_import_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    data_set(tmp_path)
    out = tmp_path / "out"
    import_with(tmp_path, out)
    (out / "batch_2.parquet").unlink()
    before = (out / "batch_1.parquet").stat().st_mtime_ns
    output = import_with(tmp_path, out)
    assert f"{out / 'batch_1.parquet'} is there: skipped" in output
    assert "batch_2.parquet: 1 events, 5 particles; " in output
    assert (out / "batch_1.parquet").stat().st_mtime_ns == before
    import_with(tmp_path, out, "--force")
    assert (out / "batch_1.parquet").stat().st_mtime_ns > before


def test_what_is_there_from_something_else_is_not_skipped(tmp_path: Path) -> None:
    data_set(tmp_path)
    out = tmp_path / "out"
    import_with(tmp_path, out)
    told = re.escape("batch_1.parquet exists, and was not made from batch_1.parquet and its tables as they are, with")
    with pytest.raises(BadInputError, match=told):
        import_with(tmp_path, out, "--max-particles", "3")
    write_batch(tmp_path / "train" / "batch_1.parquet", neutrinos([3, 4]), charge=[2.0] * 7)
    with pytest.raises(BadInputError, match=told):
        import_with(tmp_path / "train" / "batch_1.parquet", out)
    (out / "batch_1.parquet").write_bytes(b"mine")
    with pytest.raises(BadInputError, match=told):
        import_with(tmp_path, out)
    import_with(tmp_path, out, "--force")
    assert events_in(out / "batch_1.parquet")[0]["pulses"][0]["charge_pe"] == 2.0


def test_events_that_were_joined_with_another_table_are_not_skipped(tmp_path: Path) -> None:
    events = {1: neutrinos([3, 4])}
    write_kaggle(tmp_path / "a", events)
    import_with(tmp_path / "a", tmp_path / "out")
    write_kaggle(tmp_path / "a", events, changed={"azimuth": np.array([1.0, 2.0])})
    with pytest.raises(BadInputError, match=r"batch_1\.parquet exists, and was not made from"):
        import_with(tmp_path / "a", tmp_path / "out")
    write_flat(tmp_path / "b", events[1])
    import_with(tmp_path / "b", tmp_path / "flat")
    write_flat(tmp_path / "b", events[1], zenith=np.array([1.0, 2.0]))
    with pytest.raises(BadInputError, match=r"pulses_0\.parquet exists, and was not made from"):
        import_with(tmp_path / "b", tmp_path / "flat")


def test_pulses_of_the_same_size_with_other_numbers_are_not_skipped(tmp_path: Path) -> None:
    data_set(tmp_path)
    batch = tmp_path / "train" / "batch_1.parquet"
    for charge in (2.0, 3.0):
        write_batch(batch, neutrinos([3, 4]), charge=[charge] * 7)
        size_bytes = batch.stat().st_size
        if charge == 2.0:
            first_bytes = size_bytes
            import_with(tmp_path, tmp_path / "out")
    assert size_bytes == first_bytes
    with pytest.raises(BadInputError, match=r"batch_1\.parquet exists, and was not made from"):
        import_with(tmp_path, tmp_path / "out")


def test_an_import_goes_on_behind_a_bad_file_and_tells_it(tmp_path: Path) -> None:
    data_set(tmp_path)
    (tmp_path / "train" / "batch_1.parquet").write_bytes(b"<html>404</html>")
    with pytest.raises(BadInputError, match=r"1 of 2 files were not imported; the first: .*batch_1\.parquet: can't be"):
        import_with(tmp_path, tmp_path / "out", "--from", "kaggle")
    wanted = [expected(event) for event in neutrinos([5], 1, first_id=100)]
    assert events_in(tmp_path / "out" / "batch_2.parquet") == wanted
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["batch_2.parquet", "sensor_geometry.csv"]


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    data_set(tmp_path)
    before = (tmp_path / "train" / "batch_1.parquet").read_bytes()
    with pytest.raises(BadInputError, match=r"batch_1\.parquet is the input: choose another directory"):
        import_with(tmp_path / "train" / "batch_1.parquet", tmp_path / "train", "--force")
    assert (tmp_path / "train" / "batch_1.parquet").read_bytes() == before


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_flat(tmp_path / part, neutrinos([2]))
    with pytest.raises(
        BadInputError, match=r"a/pulses/pulses_0.parquet and .*b/pulses/pulses_0.parquet would both bec"
    ):
        import_with(tmp_path / "a", tmp_path / "b", tmp_path / "out")


def test_wrong_inputs_are_told_in_one_line(tmp_path: Path) -> None:
    data_set(tmp_path / "set")
    muons = tmp_path / "muons"
    muons.mkdir()
    write_events(muons / "muons.parquet", make_events([1]))
    write_hdf5(muons / "muons.h5", make_events([1]))
    empty = tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "out"
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        ((tmp_path / "none", out), "none: no such file or directory"),
        ((tmp_path / "none", out, "--from", "kaggle"), "none: no such local file or directory; download it first"),
        (("https://x.org/a", out, "--from", "kaggle"), "a: no such local file or directory; download it first"),
        ((empty, out), "empty: the directory holds no file with one of"),
        ((empty, out, "--from", "kaggle"), "empty: no batch_N.parquet in it, nor in its folder train or test"),
        ((empty, out, "--from", "graphnet"), "empty: no folder in it has a table of pulses with event_no, positions"),
        ((tmp_path / "set", muons, out), "muons is not; give only inputs of one"),
        ((tmp_path / "set", tmp_path / "none", out), "is of the layout kaggle, but others are not there; give only"),
        ((tmp_path / "set", out, "--from", "cagle"), "--from cagle: no such layout; there are kaggle, graphnet"),
        ((tmp_path / "set", tmp_path / "o.parquet"), "o.parquet: name a directory; an import writes more than one"),
        ((tmp_path / "set", muons / "muons.h5"), "muons.h5: name a directory; an import writes more than one file"),
        ((muons, out, "--from", "kaggle"), "muons: no batch_N.parquet in it, nor in its folder train or test"),
        ((muons, out, "--from", "graphnet"), "muons: no folder in it has a table of pulses with event_no, positions"),
        (
            (muons / "muons.parquet", out, "--from", "graphnet"),
            "structs with a direction: none; with lists of pulses: ",
        ),
        ((muons, out, "--max-particles", "9"), "--max-particles is for files of another experiment; these have a"),
    ]
    for arguments, told in cases:
        with pytest.raises(BadInputError, match=re.escape(told)) as error:
            import_with(*arguments)
        assert "\n" not in str(error.value)
        assert not out.exists(), arguments


def test_a_glob_of_batches_is_imported(tmp_path: Path) -> None:
    data_set(tmp_path)
    import_with(f"{tmp_path}/train/batch_*.parquet", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
