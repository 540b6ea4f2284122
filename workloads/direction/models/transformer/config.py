"""Settings of the model `transformer`, with the reason for each default in ``docs/explanation/direction.md``."""

from __future__ import annotations

from pydantic import Field, model_validator

from common.config import ConfigBranch
from workloads.direction.models.config import DirectionConfig


class TransformerNetworkConfig(ConfigBranch):
    """Sizes and shapes of the transformer: a checkpoint fits only the network it was written with.

    Parameters, the other settings at their defaults:

    - 180,000: the defaults.
    - 1.6 million: hidden = 128, heads = 8, layers = 3, refining_layers = 3.
    - 5 million: hidden = 192, heads = 12, layers = 6, refining_layers = 3.
    """

    hidden: int = Field(48, ge=4)
    """Width of the tokens, one for each sensor. A multiple of ``heads``."""

    heads: int = Field(4, ge=1)
    """Attention heads of a layer."""

    layers: int = Field(2, ge=1)
    """Layers before the first prediction."""

    refining_layers: int = Field(2, ge=1)
    """Layers behind it, which see how light and times of the sensors differ from the first prediction."""

    feed_forward: int = Field(2, ge=1)
    """Inner width of a layer's feed-forward network, in units of ``hidden``."""

    pulse_hidden: int = Field(32, ge=1)
    """Width of the network on single pulses. Its mean and maximum over a sensor's pulses enter the sensor's token."""

    frequencies: int = Field(8, ge=1)
    """Wavelengths of the Fourier features of each coordinate and time."""

    bias_layers: int = Field(1, ge=0)
    """Layers, from the first one on, whose attention is biased by the space-time interval between two sensors."""

    bias_terms: int = Field(8, ge=2)
    """Functions of the interval that the bias is a sum of. No effect without ``bias_layers``."""

    max_sensors: int = Field(256, ge=1)
    """Most sensors of an event that become tokens: those with clean pulses first, by charge, then those nearest to
    them. An event's summary has all its sensors."""

    @model_validator(mode="after")
    def _combinations_make_sense(self) -> TransformerNetworkConfig:
        """Raise ValueError, with both fields, both values and the fix, for sizes that don't fit."""
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden = {self.hidden} is no multiple of heads = {self.heads}:"
                f" set hidden = {self.heads * -(-self.hidden // self.heads)}, or other heads"
            )
        if self.bias_layers > self.layers:
            raise ValueError(
                f"bias_layers = {self.bias_layers} is above layers = {self.layers}: lower it, or raise layers"
            )
        return self


class TransformerConfig(DirectionConfig):
    """Training of the model `transformer`."""

    network: TransformerNetworkConfig = TransformerNetworkConfig()
    """Sizes and shapes."""
