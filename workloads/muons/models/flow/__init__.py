"""The flow: conditional flow matching on the muons of an event. See docs/flow.md."""
