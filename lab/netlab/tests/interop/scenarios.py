"""What a test has the client do: `python3 scenarios.py SCENARIO INVITE ...`. Fails with an exception."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable

from client import Session
from endpoint import SessionOver
from misbehaviour import misbehave
from stream import Stream
from subflow import Invite, parse_address
from wire import Frame


def exchange(
    invite: Invite, host: str, port: str, ends: str, sends: str, writes: str, count: str, *interfaces: str
) -> None:
    """Streams at once, over as many subflows as interfaces: each sends a file and writes what comes.

    Who ends first sends all at once; the other end sends half of it after that end has come.
    """
    session = Session(invite)
    session.begin(interfaces[0])
    for interface in interfaces[1:]:
        session.join(interface)
    data = Path(sends).read_bytes()
    at_once = len(data) if ends == "device" else len(data) // 2
    streams = [session.open(host, int(port)) for _ in range(int(count))]
    for stream in streams:
        stream.send(data[:at_once])
    if ends != "device":
        session.run(lambda: all(stream.is_received for stream in streams))
    for stream in streams:
        stream.send(data[at_once:])
        stream.finish()
    session.run(lambda: all(stream.is_over for stream in streams))
    for stream in streams:
        assert stream.reset_code is None, f"stream {stream.number}: reset with {stream.reset_code}"
        assert stream.result == "connected", stream.result
        Path(f"{writes}{stream.number}").write_bytes(stream.received)
    for subflow in session.subflows.values():
        print(subflow.interface, subflow.read_bytes)
    session.close()


def doubled(invite: Invite, host: str, port: str, sends: str, writes: str, *interfaces: str) -> None:
    """The same bytes over all subflows, cut differently: they arrive once."""
    session = Session(invite)
    session.begin(interfaces[0])
    for interface in interfaces[1:]:
        session.join(interface)
    stream = session.open(host, int(port))
    session.run(lambda: stream.result == "connected")
    data = Path(sends).read_bytes()
    stream.send(data)
    stream.finish()
    at, size = 0, 1000
    while not stream.is_over:
        # Only what was sent before is sent again, so that the windows are none the wiser.
        piece = bytes(data[at : min(at + size, stream.sent)])
        for subflow in session.subflows.values():
            if piece and subflow.has_room:
                subflow.write(data_frame(stream, at, piece))
        at, size = (at + len(piece) // 2, size % 9000 + 700) if piece else (0, size)
        steps = iter([False, True])
        session.run(lambda: next(steps))
    Path(writes).write_bytes(stream.received)
    session.close()


def data_frame(stream: Stream, dsn: int, octets: bytes) -> Frame:
    return Frame("DATA", {"stream": stream.number, "dsn": dsn, "idle": False, "fin": False, "bytes": octets})


def standings(invite: Invite, host: str, port: str, sends: str, writes: str, *interfaces: str) -> None:
    """The relay sends over the second subflow while the first is suspect, and over the first again when it is normal.

    The second one is a backup; the file ends neither direction. What comes late is ignored.
    """
    session = Session(invite)
    subflows = [session.begin(interfaces[0]), session.join(interfaces[1], backup=True)]
    stream = session.open(host, int(port))
    stream.send(Path(sends).read_bytes())
    stream.finish()
    for standing, used, part in (("normal", 0, 1), ("suspect", 1, 2), ("normal", 0, 3)):
        session.stand(subflows[0].number, standing)
        other = "suspect" if standing == "normal" else "normal"
        subflows[1].write(Frame("PRIORITY", {"subflow": subflows[0].number, "standing": other, "sequence": 0}))
        # What was on its way before comes yet.
        session.run(is_at(stream, (3 * part - 2) * PART))
        before = [subflow.read_bytes for subflow in subflows]
        session.run(is_at(stream, (3 * part - 1) * PART))
        brought = [subflow.read_bytes - count for subflow, count in zip(subflows, before)]
        assert brought[used] > PART * 3 // 4 > 4 * brought[1 - used], f"{standing}: {brought}"
    session.run(lambda: stream.is_over)
    Path(writes).write_bytes(stream.received)
    session.close()


PART = 1_000_000
"""Bytes of which the relay is watched sending them; as many pass between."""


def is_at(stream: Stream, count: int) -> Callable[[], bool]:
    return lambda: len(stream.received) >= count


def drained(invite: Invite, host: str, port: str, sends: str, writes: str, *interfaces: str) -> None:
    """The relay stops: it says so on every subflow, takes joins and no sessions, and lets the stream finish."""
    session = Session(invite)
    session.begin(interfaces[0])
    stream = session.open(host, int(port))
    data = Path(sends).read_bytes()
    stream.send(data[:-1])
    session.run(lambda: stream.result == "connected")
    print("connected", flush=True)
    session.run(lambda: bool(session.drains))
    joined = session.join(interfaces[1])
    session.run(lambda: joined.number in session.drains)
    try:
        Session(invite).begin(interfaces[0])
    except SessionOver as over:
        assert over.code == 0x113, over
    else:
        raise AssertionError("a session begins")
    stream.send(data[-1:])
    stream.finish()
    session.run(lambda: stream.is_over)
    Path(writes).write_bytes(stream.received)
    try:
        session.run(lambda: False)
    except SessionOver as over:
        assert over.code == 0x113, over


def elsewhere(invite: Invite, address: str, *interfaces: str) -> None:
    """Joins go where the relay says."""
    session = Session(invite)
    session.begin(interfaces[0])
    assert session.join_address == parse_address(address) != invite.address, session.join_address
    for interface in interfaces[1:]:
        joined = session.join(interface)
        assert joined.socket.getpeername()[:2] == session.join_address
    session.close()


SCENARIOS: dict[str, Callable[..., None]] = {
    "exchange": exchange,
    "doubled": doubled,
    "standings": standings,
    "drained": drained,
    "elsewhere": elsewhere,
    "misbehave": misbehave,
}


def main() -> None:
    name, invite, *arguments = sys.argv[1:]
    SCENARIOS[name](Invite.parse(invite), *arguments)


if __name__ == "__main__":
    main()
