"""What a test has the client do: `python3 scenarios.py SCENARIO INVITE ...`. Fails with an exception."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable

from client import Session
from subflow import Invite


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


SCENARIOS: dict[str, Callable[..., None]] = {"exchange": exchange}


def main() -> None:
    name, invite, *arguments = sys.argv[1:]
    SCENARIOS[name](Invite.parse(invite), *arguments)


if __name__ == "__main__":
    main()
