"""Typed messages between the dispatcher and its peers: frozen dataclasses, msgpack on the wire.

    decoder -> dispatcher   Hello Decoding Done Failed Beat Bye
    dispatcher -> decoder   Lease Retire Stop
    trainer -> dispatcher   Attach Want Release Reject Committed Finished Bye
    dispatcher -> trainer   DeliveredUnit CommitRequest End Refuse

A wire message is a msgpack map of the message's fields plus ``op`` (its class) and ``v`` (the protocol's version).
Every received message is validated: wrong types, unknown fields and negative counts raise MalformedMessage.

Every field is bounded, and so is every message: the largest of each class is below MAX_MESSAGE_BYTES (a test builds
them). Reasons are shortened where a message is built, never refused: counts and rows stay exact, and the fetcher's log
has the whole text.
"""

from common.messages.codec import (
    MAX_MESSAGE_BYTES,
    MESSAGE_CLASSES,
    PROTOCOL_VERSION,
    DecoderMessage,
    MalformedMessage,
    Message,
    ToDecoder,
    ToTrainer,
    TrainerMessage,
    decode,
    encode,
    first_error,
    unpack,
)
from common.messages.decoder import Beat, Bye, Decoding, Done, Failed, Hello, Lease, Retire, Stop
from common.messages.trainer import (
    Attach,
    CommitRequest,
    Committed,
    DeliveredUnit,
    End,
    Finished,
    Refuse,
    Reject,
    Release,
    Want,
)
from common.messages.values import (
    MAX_BAD_FILES,
    MAX_BLOCK_FILES,
    MAX_PARTS,
    MAX_REASON_BYTES,
    MAX_REASONS_BYTES,
    MAX_TEXT_BYTES,
    MAX_TRAINERS,
    BlockQuarantined,
    Count,
    Cursor,
    Digest,
    FileNumber,
    FileNumbers,
    Layout,
    Part,
    Quarantined,
    Reason,
    Source,
    Tally,
    Text,
    Unit,
    shortened,
)

__all__ = [
    "MAX_BAD_FILES",
    "MAX_BLOCK_FILES",
    "MAX_MESSAGE_BYTES",
    "MAX_PARTS",
    "MAX_REASONS_BYTES",
    "MAX_REASON_BYTES",
    "MAX_TEXT_BYTES",
    "MAX_TRAINERS",
    "MESSAGE_CLASSES",
    "PROTOCOL_VERSION",
    "Attach",
    "Beat",
    "BlockQuarantined",
    "Bye",
    "CommitRequest",
    "Committed",
    "Count",
    "Cursor",
    "DecoderMessage",
    "Decoding",
    "DeliveredUnit",
    "Digest",
    "Done",
    "End",
    "Failed",
    "FileNumber",
    "FileNumbers",
    "Finished",
    "Hello",
    "Layout",
    "Lease",
    "MalformedMessage",
    "Message",
    "Part",
    "Quarantined",
    "Reason",
    "Refuse",
    "Reject",
    "Release",
    "Retire",
    "Source",
    "Stop",
    "Tally",
    "Text",
    "ToDecoder",
    "ToTrainer",
    "TrainerMessage",
    "Unit",
    "Want",
    "decode",
    "encode",
    "first_error",
    "shortened",
    "unpack",
]
