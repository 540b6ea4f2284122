"""Settings that may be shown."""

from __future__ import annotations

from services.config.root import Config
from services.trainer.telemetry.hyperparameters import hyperparameters


def test_they_are_flat_and_hold_what_is_trained_and_how() -> None:
    config = Config.model_validate({"input": ["a.parquet"], "seed": 3, "trainer": {"wgan": {"critic_steps": 7}}})
    found = hyperparameters(config.model_dump_json())
    assert found["trainer.wgan.critic_steps"] == 7
    assert found["trainer.wgan.critic_betas"] == "[0.0, 0.9]"
    assert found["seed"] == 3
    assert found["input"] == '["a.parquet"]'
    assert found["stream.shuffle"] is True
    assert all(isinstance(value, bool | int | float | str) for value in found.values())
    assert not [name for name in found if name.startswith(("token.", "pelican.", "outputs.", "transport.", "local."))]


def test_they_are_of_the_trained_model_alone() -> None:
    for model, other in (("wgan", "likelihood"), ("likelihood", "wgan")):
        found = hyperparameters(Config.model_validate({"trainer": {"model": model}}).model_dump_json())
        assert [name for name in found if name.startswith(f"trainer.{model}.")]
        assert [name for name in found if name.startswith("trainer.health.")]
        assert not [name for name in found if name.startswith((f"trainer.{other}.", "trainer.sets."))]


def test_no_secret_is_in_them() -> None:
    jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl"
    url = "https://me:password@host/x?authz=secret-token"
    config = Config.model_validate({"input": [url, f"/data/{jwt}/x"], "trainer": {"wandb": {"entity": jwt}}})
    told = str(hyperparameters(config.model_dump_json()))
    assert "host/x" in told
    for secret in ("password", "secret-token", "c2lnbmF0dXJl"):
        assert secret not in told
