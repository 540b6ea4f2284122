"""Classical fits of an event's pulses: a line, a track and a point source of light."""
