"""The device's end of docs/protocol.md, written from that document alone.

It sends no early data and makes no use of TCP Fast Open: Python's `ssl` offers neither, and both are optional.
"""

from __future__ import annotations

import ipaddress
import secrets
import selectors
import time
from typing import Callable

from endpoint import VERSION, Endpoint, SessionOver
from stream import Stream, Violation
from subflow import Invite, Subflow, dial, parse_address
from wire import Fields, Frame


class Session(Endpoint):
    """A session that this device begins."""

    def __init__(self, invite: Invite) -> None:
        super().__init__()
        self.invite = invite
        self.key = secrets.token_bytes(16)
        self.next_subflow = 0
        self.next_stream = 0
        self.next_standing = 0
        self.join_address = invite.address
        self.greeting: Frame | None = None
        """HELLO_OK of the first subflow."""
        self.drains: set[int] = set()
        """Subflows that said DRAIN."""
        self._greeted: set[int] = set()
        self._selector = selectors.DefaultSelector()

    def begin(self, interface: str) -> Subflow:
        """The first subflow."""
        kind: Fields = {"backup": False, "kind": "init", "token": self.invite.token}
        return self._connect(interface, self.invite.address, kind)

    def join(self, interface: str, backup: bool = False) -> Subflow:
        """Another subflow."""
        subflow = self._connect(interface, self.join_address, {"backup": backup, "kind": "join"})
        self.standings[subflow.number] = "backup" if backup else "normal"
        return subflow

    def _connect(self, interface: str, address: tuple[str, int], kind: Fields) -> Subflow:
        number = self.next_subflow
        self.next_subflow += 1
        subflow = dial(number, self.invite, address, interface)
        hello: Fields = {"version": VERSION, "key": self.key, "subflow": number, "path": number + 1}
        subflow.write(Frame("HELLO", {**hello, **kind}))
        self._selector.register(subflow, selectors.EVENT_READ, subflow)
        self.attach(subflow)
        self.run(lambda: number in self._greeted)
        return subflow

    def open(self, host: str, port: int, scheduler: str = "min_rtt") -> Stream:
        """A stream to a name or an address; bytes may be sent at once."""
        if self.drains:
            raise SessionOver(0, "the relay takes no new streams; begin another session")
        stream = self.reserve(host, port, scheduler)
        self.say_first(stream, self.voice())
        return stream

    def reserve(self, host: str, port: int, scheduler: str = "min_rtt") -> Stream:
        """A stream of which nothing is said yet."""
        number = self.next_stream
        self.next_stream += 1
        fields: Fields = {"stream": number, "class": "auto", "scheduler": scheduler, kind_of(host): host, "port": port}
        self.streams[number] = Stream(number, Frame("OPEN", fields))
        return self.streams[number]

    def stand(self, number: int, standing: str) -> None:
        """Tells the relay how it shall use a subflow, over another one if there is any."""
        self.standings[number] = standing
        others = [subflow for subflow in self.subflows.values() if subflow.number != number]
        for subflow in (others or list(self.subflows.values()))[:1]:
            subflow.write(self.priority(number, standing))

    def run(self, until: Callable[[], bool], seconds: float = 60.0) -> None:
        """Carries everything until something is so."""
        deadline = time.monotonic() + seconds
        while not until():
            if not self.subflows:
                raise SessionOver(0, f"no subflow is left: {self.closes}")
            if time.monotonic() > deadline:
                raise TimeoutError("in vain")
            self.send()
            for subflow in self.subflows.values():
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if subflow.has_unsent else 0)
                self._selector.modify(subflow, events, subflow)
            for key, _ in self._selector.select(0.05):
                self.receive(key.data)
            self.watch()

    def usable(self) -> list[Subflow]:
        # Before HELLO_OK it is not known whether the relay takes them.
        greeted = [subflow for subflow in super().usable() if subflow.number in self._greeted]
        return greeted or super().usable()

    def say_first(self, stream: Stream, subflow: Subflow) -> None:
        if not stream.is_known and subflow.number not in stream.opened_on:
            stream.opened_on.add(subflow.number)
            subflow.write(stream.open_frame)

    def is_seen(self, number: int) -> bool:
        return number < self.next_stream

    def _handle(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        if (subflow.number in self._greeted) == (frame.name == "HELLO_OK") and frame.name != "CLOSE":
            raise Violation(0x03, f"{frame.name} is out of place")
        super()._handle(frame, subflow, touched)

    def handle_own(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        if frame.name == "HELLO_OK":
            self._greeted.add(subflow.number)
            self.greeting = self.greeting or frame
            self.most_streams = frame.number("max_streams")
            if frame["address"]:
                self.join_address = parse_address(frame.word("address"))
        elif frame.name == "ADVERTISE":
            self.join_address = parse_address(frame.word("address"))
        elif frame.name == "DRAIN":
            self.drains.add(subflow.number)
        elif frame.name == "OPENED":
            if not self.is_seen(frame.number("stream")):
                raise Violation(0x104, f"stream {frame.number('stream')} was never opened")
            stream = self.streams.get(frame.number("stream"))
            if stream is not None:
                stream.is_known = True
                stream.result = stream.result or frame.word("result")
        else:
            super().handle_own(frame, subflow, touched)

    def detach(self, subflow: Subflow) -> None:
        self._selector.unregister(subflow)

    def say_again(self, lost: int, other: Subflow) -> None:
        self.standings[lost] = "gone"
        for number, standing in self.standings.items():
            if number != other.number or standing != "gone":
                other.write(self.priority(number, standing))

    def priority(self, number: int, standing: str) -> Frame:
        self.next_standing += 1
        return Frame("PRIORITY", {"subflow": number, "standing": standing, "sequence": self.next_standing - 1})


def kind_of(host: str) -> str:
    """What OPEN calls it."""
    try:
        return f"ipv{ipaddress.ip_address(host).version}"
    except ValueError:
        return "name"
