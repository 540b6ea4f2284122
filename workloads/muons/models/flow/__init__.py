"""Conditional flow matching on the muons of an event (docs/flow.md)."""
