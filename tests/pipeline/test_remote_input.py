"""Files from elsewhere: staged within the disk budget, evicted behind the checkpoint, and no secret is told."""

from __future__ import annotations

import pytest
from runs import COUNTING, Processes, settings
from showers import Server, Showers, bytes_under, urls

pytestmark = pytest.mark.slow

SECRET = "s3cr3t-t0ken"


def test_remote_files_pass_through_a_cache_that_never_exceeds_its_budget(
    processes: Processes, showers: Showers, server: Server
) -> None:
    paths = showers.write(server.folder)
    paths += [path.rename(path.with_name(f"more_{path.name}")) for path in showers.write(server.folder / "more")]
    names = [str(path.relative_to(server.folder)) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    budget_bytes = int(2.5 * max(sizes))
    assert sum(sizes) > 2 * budget_bytes

    small = settings(*COUNTING, "stream.block_files=1", f"fetcher.disk_budget_gib={budget_bytes / 2**30}")
    run = processes.start("run", *urls(server, names), *small, "--epochs", "2")
    most_bytes = 0

    def watched_end() -> bool:
        nonlocal most_bytes
        most_bytes = max(most_bytes, bytes_under(processes.run_dir / "cache"))
        assert processes.fetcher.bytes_staged <= budget_bytes
        return run.ended()

    processes.wait_for(watched_end, "the end of the run")
    assert run.popen.returncode == 0, processes.report()
    assert 0 < most_bytes <= budget_bytes
    assert bytes_under(processes.run_dir / "cache") == 0  # all is behind the last checkpoint
    processes.summary().assert_read(2 * 2 * showers.events)


def test_no_secret_of_a_url_is_told_anywhere(processes: Processes, showers: Showers, server: Server) -> None:
    names = [path.name for path in showers.write(server.folder)]
    server.refuse[names[1]] = [403] * 100
    (server.folder / "broken.parquet").write_bytes(b"PAR1 and no more")
    inputs = urls(server, [*names, "broken.parquet"], f"?token={SECRET}")
    options = settings(*COUNTING, "max_particles_per_event=100")  # some outliers
    summary = processes.train(*inputs, *options)
    assert summary["events_outlier"] > 0
    assert len(summary["quarantined"]) == 2
    assert any(SECRET in path for path in server.gets), "the token was needed, and sent"
    processes.assert_nowhere(SECRET, but=("config.json", "ledger.sqlite"))

    for bad in (f"{server.url}/none.parquet?token={SECRET}", f"http://user:{SECRET}@127.0.0.1:1/x.parquet"):
        exit_code, output = processes.run("run", "-i", bad, "--fresh", "--yes", *settings(*COUNTING))
        assert exit_code == 2
        assert "Traceback" not in output + processes.log("fetcher")
        processes.assert_nowhere(SECRET, but=("config.json", "ledger.sqlite"))
