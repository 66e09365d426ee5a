"""What a test has the client do: `python3 scenarios.py SCENARIO INVITE ...`. Fails with an exception."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable

from client import Session, Stream
from subflow import Invite


def exchange(invite: Invite, host: str, port: str, ends: str, sends: str, writes: str, *interfaces: str) -> None:
    """Sends a file and writes what comes, over as many subflows as interfaces; `ends` is who closes its half first."""
    session = Session(invite)
    session.begin(interfaces[0])
    for interface in interfaces[1:]:
        session.join(interface)
    stream = session.open(host, int(port))
    perform(session, stream, ends, Path(sends).read_bytes())
    Path(writes).write_bytes(stream.received)
    for subflow in session.subflows.values():
        print(f"{subflow.interface} {subflow.read_bytes}")
    session.close()


def perform(session: Session, stream: Stream, ends: str, data: bytes) -> None:
    """One end of an exchange: who ends first sends all at once, the other one half of it after that end."""
    at_once = len(data) if ends == "device" else len(data) // 2
    stream.send(data[:at_once])
    if ends != "device":
        session.run(lambda: stream.is_received)
        stream.send(data[at_once:])
    stream.finish()
    session.run(lambda: stream.is_over)
    assert stream.reset_code is None, f"reset with {stream.reset_code}"
    assert stream.result == "connected", stream.result


SCENARIOS: dict[str, Callable[..., None]] = {"exchange": exchange}


def main() -> None:
    name, invite, *arguments = sys.argv[1:]
    SCENARIOS[name](Invite.parse(invite), *arguments)


if __name__ == "__main__":
    main()
