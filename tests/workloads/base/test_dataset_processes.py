"""Jobs in several processes: results in order, and an end whatever happens."""

import operator
import os
import time
from functools import partial

import pytest

from common.errors import BadInputError
from workloads.base.dataset import in_processes
from workloads.muons.showers import interactions
from workloads.muons.showers.interactions import LibraryName

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def results(jobs, jobs_of_process=None):
    return [result() for result in in_processes(operator.call, jobs, 2, jobs_of_process=jobs_of_process)]


@pytest.mark.parametrize("jobs_of_process", [None, 1])
def test_results_come_in_the_order_of_the_jobs_and_the_processes_end(jobs_of_process):
    jobs = [partial(operator.add, number, 0) for number in range(12)]
    assert results(jobs, jobs_of_process) == list(range(12))


def test_an_error_does_not_wait_for_the_jobs_that_run():
    jobs = [partial(operator.truediv, 1, 0), *[partial(time.sleep, 1000)] * 4]
    with pytest.raises(ZeroDivisionError):
        results(jobs)


def test_a_process_that_is_killed_is_an_error_in_one_line():
    jobs = [partial(os._exit, 7), *[partial(time.sleep, 1)] * 3]  # seen at the latest with another one's result
    with pytest.raises(BadInputError, match="a process ended: out of memory"):
        results(jobs)


def test_a_library_that_another_process_made_meanwhile_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def made_twice(folder, name):
        for place in (folder, tmp_path / "icestream" / "showers" / f"sibyll23d-0.11.0-1-v{interactions.FORMAT}"):
            place.mkdir()
            (place / "kind.npy").write_bytes(b"")

    monkeypatch.setattr(interactions, "make_library", made_twice)
    assert [path.name for path in LibraryName().folder().iterdir()] == ["kind.npy"]
