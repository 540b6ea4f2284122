"""Transport: lifelines and control sockets between the processes of a run.

A lifeline (unix stream) and a control socket (ZeroMQ) for every peer on this host, and one encrypted TCP connection for
a trainer elsewhere.

Lifeline: identifies the peer (SO_PEERCRED: the owner only), passes the arena's descriptor and a name for the control

socket, and gives end-of-file when the other side is dead, for any cause. A peer that closes in good order first sends
its number of messages there: they are awaited before it counts as lost. Control: ROUTER (dispatcher) and DEALER
(peers), no high-water mark, no linger; a message from a name that was given to no lifeline is dropped.
Over TCP there is neither descriptor nor lifeline: remote_server.py describes their replacements.
"""

from common.transport.addresses import SOCKET_FOLDER
from common.transport.events import Event, FetcherLost, Lost, Received, StopRequested
from common.transport.peer import PeerTransport
from common.transport.remote_peer import RemotePeerTransport
from common.transport.remote_server import check_listen
from common.transport.server import ServerTransport

__all__ = [
    "SOCKET_FOLDER",
    "Event",
    "FetcherLost",
    "Lost",
    "PeerTransport",
    "Received",
    "RemotePeerTransport",
    "ServerTransport",
    "StopRequested",
    "check_listen",
]
