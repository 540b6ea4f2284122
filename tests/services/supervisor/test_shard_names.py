from __future__ import annotations

from pathlib import Path

import pytest

from services.supervisor.names import decoder_name, fetcher_name, service_command, service_of, shard_of


@pytest.mark.parametrize(
    ("name", "service", "shard"),
    [
        (fetcher_name(None), "fetcher", None),
        (fetcher_name(12), "fetcher", 12),
        (decoder_name(None, 3), "decoder", None),
        (decoder_name(12, 3), "decoder", 12),
        ("trainer", "trainer", None),
        ("trainer-1", "trainer", None),
    ],
)
def test_a_name_tells_service_and_shard(name: str, service: str, shard: int | None) -> None:
    assert (service_of(name), shard_of(name)) == (service, shard)


def test_the_command_of_a_shard_names_it() -> None:
    assert service_command("decoder-002-0", Path("run"), 4)[-4:] == ["--shard", "2", "--on-machine", "4"]
    assert service_command("decoder-0", Path("run"), 4)[-2:] == ["--run-dir", "run"]
