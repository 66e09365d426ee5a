"""The frames of docs/protocol.md, written from that document alone."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field
from typing import Mapping, Union

Value = Union[int, bool, str, bytes]
Fields = Mapping[str, Value]

MAX_BODY = 65536
MAX_TEXT = 256
MAX_TOKEN = 4096
MAX_VARINT = 2**62 - 1
MAX_DSN = 2**62 - 65537
FIRST_SKIPPED_TYPE = 0x40

SCHEDULERS = ("min_rtt", "last_received", "ecf", "blest", "redundant", "priority")
RESULTS = ("connected", "forbidden", "no_such_host", "refused", "unreachable", "timed_out", "over_limit", "failed")


class Refused(Exception):
    """A frame that is a violation; `why` is as in the document's block `refused`."""

    def __init__(self, why: str, text: str = "") -> None:
        super().__init__(f"{why}: {text}")
        self.why = why


class Incomplete(Exception):
    """There are fewer octets than a value has."""


@dataclass(frozen=True)
class Frame:
    """A frame by its name in the test vectors, with its fields in the order of the wire."""

    name: str
    fields: Fields = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        return self.fields[name]

    def number(self, name: str) -> int:
        return number(self.fields[name])

    def word(self, name: str) -> str:
        return word(self.fields[name])

    def octets(self, name: str) -> bytes:
        return octets(self.fields[name])

    def flag(self, name: str) -> bool:
        return bool(self.fields[name])


def number(value: Value) -> int:
    assert isinstance(value, int), value
    return value


def word(value: Value) -> str:
    assert isinstance(value, str), value
    return value


def octets(value: Value) -> bytes:
    assert isinstance(value, bytes), value
    return value


def write_varint(value: int) -> bytes:
    """RFC 9000 section 16, in the shortest form."""
    for octets, top in ((1, 0x00), (2, 0x40), (4, 0x80), (8, 0xC0)):
        if value < 1 << (8 * octets - 2):
            written = bytearray(value.to_bytes(octets, "big"))
            written[0] |= top
            return bytes(written)
    raise ValueError(f"{value} is no varint")


class Reader:
    """Takes values off the beginning of octets."""

    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.at = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.octets):
            raise Incomplete
        self.at += count
        return self.octets[self.at - count : self.at]

    def octet(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        first = self.octet()
        rest = self.take((1 << (first >> 6)) - 1)
        return int.from_bytes(bytes([first & 0x3F]) + rest, "big")

    def rest(self) -> bytes:
        return self.take(len(self.octets) - self.at)


class Field:
    """A field of a body, or several that belong together."""

    def read(self, body: Reader) -> Fields:
        raise NotImplementedError

    def write(self, fields: Fields) -> bytes:
        raise NotImplementedError


class Varint(Field):
    def __init__(self, name: str, most: int = MAX_VARINT) -> None:
        self.name, self.most = name, most

    def read(self, body: Reader) -> Fields:
        value = body.varint()
        if value > self.most:
            raise Refused("malformed", f"{self.name} is {value}")
        return {self.name: value}

    def write(self, fields: Fields) -> bytes:
        return write_varint(number(fields[self.name]))


class Octets(Field):
    """A number of octets that have no meaning here."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count

    def read(self, body: Reader) -> Fields:
        return {self.name: body.take(self.count)}

    def write(self, fields: Fields) -> bytes:
        return octets(fields[self.name])


class Number64(Field):
    """Eight octets, big-endian."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, body: Reader) -> Fields:
        return {self.name: int.from_bytes(body.take(8), "big")}

    def write(self, fields: Fields) -> bytes:
        return number(fields[self.name]).to_bytes(8, "big")


class Choice(Field):
    """One octet that stands for one of these words."""

    def __init__(self, name: str, *words: str) -> None:
        self.name, self.words = name, words

    def read(self, body: Reader) -> Fields:
        value = body.octet()
        if value >= len(self.words):
            raise Refused("malformed", f"{self.name} is {value}")
        return {self.name: self.words[value]}

    def write(self, fields: Fields) -> bytes:
        return bytes([self.words.index(word(fields[self.name]))])


class Flags(Field):
    """One octet of bits, the lowest first."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, body: Reader) -> Fields:
        value = body.octet()
        if value >> len(self.names):
            raise Refused("malformed", f"flags are {value:#x}")
        return {name: bool(value >> bit & 1) for bit, name in enumerate(self.names)}

    def write(self, fields: Fields) -> bytes:
        return bytes([sum(bool(fields[name]) << bit for bit, name in enumerate(self.names))])


class Text(Field):
    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, body: Reader) -> Fields:
        length = body.varint()
        if length > MAX_TEXT:
            raise Refused("malformed", f"a text of {length} octets")
        try:
            return {self.name: body.take(length).decode()}
        except UnicodeDecodeError as error:
            raise Refused("malformed", str(error)) from error

    def write(self, fields: Fields) -> bytes:
        text = word(fields[self.name]).encode()
        return write_varint(len(text)) + text


class Rest(Field):
    """Octets to the end of the body."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, body: Reader) -> Fields:
        return {self.name: body.rest()}

    def write(self, fields: Fields) -> bytes:
        return octets(fields[self.name])


class Kind(Field):
    """HELLO's kind, with the token where there is one."""

    def read(self, body: Reader) -> Fields:
        kind = body.octet()
        if kind == 1:
            return {"kind": "join"}
        if kind != 0:
            raise Refused("malformed", f"HELLO's kind is {kind}")
        length = body.varint()
        if length > MAX_TOKEN:
            raise Refused("malformed", f"a token of {length} octets")
        return {"kind": "init", "token": body.take(length)}

    def write(self, fields: Fields) -> bytes:
        if fields["kind"] == "join":
            return b"\x01"
        token = octets(fields["token"])
        return b"\x00" + write_varint(len(token)) + token


class Destination(Field):
    """A name or an address, and a port."""

    def read(self, body: Reader) -> Fields:
        kind = body.octet()
        if kind == 4:
            host: Fields = {"ipv4": str(ipaddress.IPv4Address(body.take(4)))}
        elif kind == 6:
            host = {"ipv6": str(ipaddress.IPv6Address(body.take(16)))}
        elif kind == 0:
            name = body.take(body.octet())
            if not 1 <= len(name) <= 253 or not all(0x21 <= octet <= 0x7E for octet in name):
                raise Refused("malformed", f"the host {name!r}")
            host = {"name": name.decode()}
        else:
            raise Refused("malformed", f"a destination of kind {kind}")
        return {**host, "port": struct.unpack(">H", body.take(2))[0]}

    def write(self, fields: Fields) -> bytes:
        port = struct.pack(">H", fields["port"])
        if "ipv4" in fields:
            return b"\x04" + ipaddress.IPv4Address(word(fields["ipv4"])).packed + port
        if "ipv6" in fields:
            return b"\x06" + ipaddress.IPv6Address(word(fields["ipv6"])).packed + port
        name = word(fields["name"]).encode()
        return bytes([0, len(name)]) + name + port


STREAM = Varint("stream")
LAYOUTS: dict[str, tuple[int, tuple[Field, ...]]] = {
    "HELLO": (
        0x01,
        (Varint("version"), Octets("key", 16), Varint("subflow"), Varint("path", 2**32 - 1), Flags("backup"), Kind()),
    ),
    "HELLO_OK": (
        0x02,
        (Varint("version"), Varint("max_streams"), Varint("max_subflows"), Varint("linger"), Text("address")),
    ),
    "PING": (0x03, (Number64("value"),)),
    "PONG": (0x04, (Number64("value"),)),
    "PRIORITY": (
        0x05,
        (Varint("subflow"), Choice("standing", "normal", "backup", "suspect", "gone"), Varint("sequence")),
    ),
    "RTO_REQUEST": (0x06, ()),
    "RTO": (0x06, (Varint("micros"),)),
    "ADVERTISE": (0x07, (Text("address"),)),
    "PIPE_STATUS": (0x08, (Varint("subflow"), Varint("buffered"), Varint("rate"))),
    "DRAIN": (0x09, ()),
    "CLOSE": (0x0A, (Varint("code"), Text("text"))),
    "OPEN": (
        0x10,
        (STREAM, Choice("class", "auto", "interactive", "bulk"), Choice("scheduler", *SCHEDULERS), Destination()),
    ),
    "OPENED": (0x11, (STREAM, Choice("result", *RESULTS))),
    "DATA": (0x12, (STREAM, Varint("dsn", MAX_DSN), Flags("idle", "fin"), Rest("bytes"))),
    "ACK": (0x13, (STREAM, Varint("data_ack"), Varint("window"))),
    "RESET": (0x14, (STREAM, Varint("code"), Varint("end"), Choice("answer", "no", "yes"))),
    "WINDOW": (0x15, (Varint("bytes"),)),
}
NAMES = {type_: name for name, (type_, _) in LAYOUTS.items() if name != "RTO_REQUEST"}


def encode(frame: Frame) -> bytes:
    """The octets of a frame."""
    type_, layout = LAYOUTS[frame.name]
    return raw(type_, b"".join(part.write(frame.fields) for part in layout))


def raw(type_: int, body: bytes) -> bytes:
    """The octets of a frame of any type, whether there is such a type or not."""
    return bytes([type_]) + write_varint(len(body)) + body


def decode(octets: bytes) -> tuple[Frame | None, int]:
    """The first frame of these octets and how many it takes; None for one that is skipped.

    Raises `Incomplete` while there is not all of it, and `Refused` if no more octets could mend it.
    """
    reader = Reader(octets)
    type_ = reader.octet()
    if type_ < FIRST_SKIPPED_TYPE and type_ not in NAMES:
        raise Refused("unknown_type", f"{type_:#04x}")
    length = reader.varint()
    if length > MAX_BODY:
        raise Refused("too_long", f"{length} octets")
    body = Reader(reader.take(length))
    if type_ >= FIRST_SKIPPED_TYPE:
        return None, reader.at
    name = "RTO_REQUEST" if type_ == 0x06 and length == 0 else NAMES[type_]
    fields: dict[str, Value] = {}
    try:
        for part in LAYOUTS[name][1]:
            fields.update(part.read(body))
    except Incomplete as error:
        raise Refused("malformed", f"{name} ends early") from error
    if body.at != length:
        raise Refused("malformed", f"{name} goes on too long")
    return Frame(name, fields), reader.at
