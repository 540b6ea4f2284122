from __future__ import annotations

import pytest

from common.errors import BadInputError
from services.outputs.manifest import Manifest, OutputFile, changes, parse_manifest

RUN = "ab" * 16


def file(size_bytes: int, digit: str = "0") -> OutputFile:
    return OutputFile(size_bytes=size_bytes, digest="sha256=" + digit * 64)


def step(number: int) -> str:
    return f"checkpoints/step-{number:09d}.pt"


def test_the_newest_checkpoint_goes_first_and_what_has_not_changed_stays() -> None:
    local = {step(1): file(1), step(2): file(2), "tensorboard/events.a": file(3), "tensorboard/events.b": file(4)}
    manifest = Manifest(run_id=RUN, files={step(1): file(1), "tensorboard/events.a": file(2)})
    assert changes(local, manifest, 2) == ([step(2), "tensorboard/events.a", "tensorboard/events.b"], [])
    assert changes({}, manifest, 2) == ([], [])


def test_old_checkpoints_go_once_newer_ones_are_there() -> None:
    manifest = Manifest(run_id=RUN, files={step(n): file(n) for n in (1, 2, 3)})
    assert changes({step(4): file(4)}, manifest, 2) == ([step(4)], [step(2), step(1)])


def test_an_older_checkpoint_than_those_that_are_kept_is_not_copied() -> None:
    manifest = Manifest(run_id=RUN, files={step(8): file(8), step(9): file(9)})
    assert changes({step(3): file(3)}, manifest, 2) == ([], [])


def test_a_manifest_is_the_same_after_it_was_written() -> None:
    manifest = Manifest(run_id=RUN).with_file(step(1), file(5)).with_file(step(2), file(6)).without(step(1))
    assert parse_manifest(manifest.model_dump_json().encode(), "there") == manifest
    assert manifest.checkpoints == [step(2)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"run_id": "x"}',
        b'{"run_id": "%s", "files": {"checkpoints/../../x": {"size_bytes": 1, "digest": "sha256=%s"}}}'
        % (RUN.encode(), b"0" * 64),
        b'{"run_id": "%s", "files": {"tensorboard/../x": {"size_bytes": 1, "digest": "sha256=%s"}}}'
        % (RUN.encode(), b"0" * 64),
        b'{"run_id": "%s", "files": {"checkpoints/a/x": {"size_bytes": 1, "digest": "sha256=%s"}}}'
        % (RUN.encode(), b"0" * 64),
        b'{"run_id": "%s", "files": {"other/x": {"size_bytes": 1, "digest": "sha256=%s"}}}' % (RUN.encode(), b"0" * 64),
        b'{"run_id": "%s", "files": {"checkpoints/x": {"size_bytes": -1, "digest": "md5=0"}}}' % RUN.encode(),
    ],
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(BadInputError, match="there: not a list of outputs"):
        parse_manifest(text, "there")
