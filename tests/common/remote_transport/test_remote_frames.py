"""Frames that break the protocol, of trainers and of fetchers."""

from __future__ import annotations

import pytest
import zmq
from polls import poll_for, poll_until_lost, receive
from remote_peers import SLOT_BYTES, Serve, attach, connect, poll_until, unit

from common import messages as m
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import FetcherLost, Lost, Received, RemotePeerTransport, ServerTransport, wire


def test_what_is_no_trainers_message_is_counted_and_dropped(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes]
) -> None:
    server, where = serve(config)
    dealer.connect(where.connect)
    join = [wire.JOIN, wire.encode_handshake(wire.Join())]
    want = [wire.MESSAGE, m.encode(m.Want(1))]
    bad = [
        want,  # before the handshake
        [wire.LEAVE],
        [wire.JOIN],
        [wire.JOIN, b"rubbish"],
        [wire.JOIN, b"\x81\xa1v\xa1x"],
        [wire.JOIN, b"\x82\xa1v%c\xa1x\x01" % m.PROTOCOL_VERSION],  # an unknown field
    ]
    for frames in bad:
        dealer.send_multipart(frames)
    poll_until(server, lambda: server.malformed == len(bad))
    dealer.send_multipart(join)
    worse = [
        join,  # again
        [b"rubbish"],
        [wire.PROBE],
        [wire.WELCOME, b""],
        [wire.MESSAGE],
        [wire.MESSAGE, b"rubbish"],
        [wire.MESSAGE, m.encode(m.Want(1)), b"payload"],
        *([wire.MESSAGE, m.encode(message)] for message in (m.Hello(1), m.Beat(), m.Stop(), unit(0, -1))),
        [wire.MESSAGE, m.encode(m.Done(0, 0, m.Layout(0, 0, 0), m.Tally()))],
    ]
    for frames in worse:
        dealer.send_multipart(frames)
    poll_until(server, lambda: server.malformed == len(bad) + len(worse))
    dealer.send_multipart(want)
    (event,) = poll_for(server, 1)
    assert isinstance(event, Received)
    assert event.message == m.Want(1)
    assert server.malformed == len(bad) + len(worse)


@pytest.mark.parametrize("name", [b"0-0123456789abcdef", b"tcp", b"\x01\x02", "ä".encode() * 16])
def test_who_has_no_name_as_trainers_choose_it_is_not_heard(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes], name: bytes
) -> None:
    server, where = serve(config)
    dealer.setsockopt(zmq.ROUTING_ID, name)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    poll_until(server, lambda: server.malformed == 1)


def test_a_message_that_is_too_large_ends_the_connection(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes]
) -> None:
    server, where = serve(config)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    dealer.send_multipart([wire.MESSAGE, m.encode(m.Want(1))])
    (event,) = poll_for(server, 1)
    dealer.send_multipart([wire.MESSAGE, bytes(m.MAX_MESSAGE_BYTES + 1)])
    assert poll_until_lost(server) == [Lost(event.peer)]
    assert server.malformed == 0


def sent_by(server: ServerTransport, name: str, *frames: bytes) -> None:
    assert server._remote is not None
    server._remote.router.send_multipart([name.removeprefix("tcp-").encode(), *frames])


PARTICLES = 1000


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([b"rubbish"], "1 frames of kind b'rubbish'"),
        ([wire.MESSAGE], "1 frames of kind b'M'"),
        ([wire.MESSAGE, b"rubbish"], "the fetcher sent .*rubbish|not msgpack|not a message"),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=PARTICLES))], "unit 0 without its payload"),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=PARTICLES)), bytes(PARTICLES - 1)], "999 bytes for unit 0"),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=PARTICLES)), bytes(PARTICLES + 1)], "1001 bytes for unit 0"),
        (
            [wire.MESSAGE, m.encode(unit(0, 0, particles=SLOT_BYTES + 1)), bytes(SLOT_BYTES + 1)],
            "a slot has 1048576",
        ),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=2**62)), bytes(1)], "1 bytes for unit 0"),
        ([wire.MESSAGE, m.encode(unit(0, -1, particles=0)), b"x"], "a DeliveredUnit with a payload"),
        ([wire.MESSAGE, m.encode(m.End()), b"x"], "a End with a payload"),
        ([wire.MESSAGE, m.encode(m.End()), b"x", b"y"], "4 frames of kind b'M'"),
    ],
)
def test_a_fetcher_that_breaks_the_protocol_is_named(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport], frames: list[bytes], complaint: str
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    sent_by(server, attach(server, peer), *frames)
    with pytest.raises(BadInputError, match=complaint):
        receive(peer)


def test_units_that_come_twice_or_are_too_many_are_refused(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where, slots=2))
    name = attach(server, peer)
    for k in (0, 0, 1, 2):
        server.send(name, unit(k, slot=0))
    receive(peer)
    with pytest.raises(BadInputError, match="unit 0 twice"):
        receive(peer)
    receive(peer)
    with pytest.raises(BadInputError, match="unit 2 on top of the 2 that fit"):
        receive(peer)


def test_a_frame_that_no_slot_holds_ends_the_connection(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    sent_by(server, attach(server, peer), wire.MESSAGE, b"", bytes(SLOT_BYTES + (1 << 20) + 1))
    with pytest.raises(FetcherLost):
        receive(peer)
