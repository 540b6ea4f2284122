"""What is learned from the stream: one folder for each workload."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
