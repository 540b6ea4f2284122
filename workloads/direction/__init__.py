"""Neutrino direction: where a neutrino came from, by the light pulses of its event."""
