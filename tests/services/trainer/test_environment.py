"""The ranks' places, from torchrun's environment."""

from __future__ import annotations

import pytest

from common.errors import BadInputError
from services.trainer.environment import RankPlace, device_of, place_from, prepare

OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu-a"}


def test_without_torchruns_variables_or_with_one_rank_a_trainer_is_alone() -> None:
    assert place_from({}) is None
    assert place_from({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_the_place_is_read_from_torchruns_variables_and_the_file_in_which_the_ranks_of_a_run_meet() -> None:
    assert place_from(OF_TWO) == RankPlace(1, 2, 1, 2, "gpu-a")
    assert place_from(OF_TWO | {"LOCAL_WORLD_SIZE": "8"}) == RankPlace(1, 2, 1, 8, "gpu-a")
    place = place_from({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "_ICESTREAM_RANKS_FILE": "/run/ranks"})
    assert place == RankPlace(1, 2, 1, 2, "", "/run/ranks")
    assert place.is_local


@pytest.mark.parametrize(
    ("change", "message"),
    [({"RANK": ""}, "RANK, .*: .* ''; start them with"), ({"WORLD_SIZE": "1000"}, "at most 256 trainers")],
)
def test_what_is_missing_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        place_from(OF_TWO | change)


def test_each_rank_takes_the_gpu_of_its_local_rank() -> None:
    place = place_from(OF_TWO)
    assert place is not None
    assert device_of("auto", place, 0) == "cpu"
    assert device_of("cpu", place, 8) == "cpu"
    assert device_of("auto", place, 2) == device_of("cuda", place, 2) == "cuda:1"


@pytest.mark.parametrize(("name", "num_gpus"), [("cuda", 0), ("cuda", 1), ("auto", 1), ("cuda:1", 2)])
def test_fewer_gpus_than_ranks_are_refused(name: str, num_gpus: int) -> None:
    place = place_from(OF_TWO)
    assert place is not None
    with pytest.raises(BadInputError, match="each rank takes"):
        device_of(name, place, num_gpus)


def test_the_other_names_of_this_machine_are_known() -> None:
    for address, is_local in (("localhost", True), ("127.0.0.2", True), ("::1", True), ("gpu-node", False)):
        assert RankPlace(0, 2, 0, 2, address).is_local is is_local


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_allocator_the_code_caches_and_the_workspace_are_set_before_torch_is_loaded(deterministic: bool) -> None:
    """Compiled code lies in the user's own cache, and not at a name that anybody can take."""
    environment = {"HOME": "/home/me"}
    prepare(environment, deterministic=deterministic)
    assert environment.pop("CUBLAS_WORKSPACE_CONFIG", "") == (":4096:8" if deterministic else "")
    assert environment == {
        "HOME": "/home/me",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/.cache/icestream/inductor",
        "TRITON_CACHE_DIR": "/home/me/.cache/icestream/triton",
    }


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_what_the_user_has_set_stays(name: str) -> None:
    environment = {name: "max_split_size_mb:64", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": "/scratch/inductor", "TRITON_CACHE_DIR": "/scratch/triton"}
    before = dict(environment)
    prepare(environment, deterministic=True)
    assert environment == before
