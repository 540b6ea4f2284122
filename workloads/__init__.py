"""Workloads: what the stream carries and the models that learn from it, a folder each."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
