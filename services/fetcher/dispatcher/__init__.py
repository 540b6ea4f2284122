"""Dispatcher: the only owner of units, leases and slots. Messages and deaths in, actions out; no IO, no clock.

State in parts that don't know each other: unit_table (units and slots), decoder_pool (credit, leases, silence),
trainers (their places in the stream), unit_failures (blame), history (newest events). dispatcher changes them as
messages arrive; grants then leases and delivers what the state allows; actions go to the service.
"""

from services.fetcher.dispatcher.actions import (
    Action,
    EndRun,
    Evict,
    Fence,
    Quarantine,
    Remember,
    Replan,
    Restage,
    Send,
)
from services.fetcher.dispatcher.dispatcher import Dispatcher
from services.fetcher.dispatcher.unit_table import State

__all__ = [
    "Action",
    "Dispatcher",
    "EndRun",
    "Evict",
    "Fence",
    "Quarantine",
    "Remember",
    "Replan",
    "Restage",
    "Send",
    "State",
]
