"""The relay's end of docs/protocol.md, for one destination that sends back what it gets.

`python3 relay.py IDENTITY HOST PORT JOIN_PORT` listens on two ports with the certificate and key in the file
`IDENTITY`, lets every token in, and prints what happens. The names of destinations say what else it does.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import sys
from typing import Callable

from endpoint import VERSION, Endpoint, SessionOver
from stream import FIRST_STREAM_WINDOW, Stream, Violation
from subflow import ALPN, Subflow
from wire import Fields, Frame, Refused, raw, word

MOST_STREAMS = 100
MOST_SUBFLOWS = 8
LINGER = 60
MOST_AHEAD = 4096
"""Numbers of streams from the lowest unseen on."""


class Session(Endpoint):
    """A session that a device began."""

    def __init__(self, relay: Relay, key: bytes) -> None:
        super().__init__()
        self.relay = relay
        self.key = key
        self.used_numbers: set[int] = set()
        self.most_streams = MOST_STREAMS
        self._seen: set[int] = set()
        self._lowest_unseen = 0
        self._echoed: dict[int, int] = {}
        self._next_standing: dict[int, int] = {}

    def _see(self, number: int) -> bool:
        """Takes a number of a stream; whether it was not taken before."""
        if number >= self._lowest_unseen + MOST_AHEAD:
            raise Violation(0x104, f"stream {number} is too far ahead")
        is_new = number not in self._seen
        self._seen.add(number)
        while self._lowest_unseen in self._seen:
            self._lowest_unseen += 1
        return is_new

    def is_seen(self, number: int) -> bool:
        return number in self._seen

    def detach(self, subflow: Subflow) -> None:
        self.relay.forget(subflow)

    def handle_own(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        if frame.name == "OPEN":
            self._open(frame, subflow)
        elif frame.name == "PRIORITY":
            self._stand(frame, subflow)
        else:
            super().handle_own(frame, subflow, touched)

    def _handle_stream(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        if frame.name == "RESET" and self._see(frame.number("stream")):
            # What was sent of it counts, although it was never opened.
            end = frame.number("end")
            if end > FIRST_STREAM_WINDOW:
                raise Violation(0x105, f"stream {frame.number('stream')}: {end} is beyond its window")
            self.received += end
            self.read += end
        super()._handle_stream(frame, subflow, touched)

    def _open(self, frame: Frame, subflow: Subflow) -> None:
        number = frame.number("stream")
        if not self._see(number):
            return
        stream = Stream(number, frame)
        stream.is_known = True
        self.streams[number] = stream
        name = word(frame.fields.get("name", ""))
        stream.result = "connected" if name.endswith(".echo") else "no_such_host"
        say(f"open {name} {stream.result}")
        self._say_opened(stream, subflow)
        if stream.result == "connected":
            self.say_ack(stream, subflow)
            DEEDS.get(name.removesuffix(".echo"), echo)(self, stream, subflow)
        else:
            self.reset(stream, 1)

    def _say_opened(self, stream: Stream, subflow: Subflow) -> None:
        subflow.write(Frame("OPENED", {"stream": stream.number, "result": stream.result or ""}))

    def _stand(self, frame: Frame, said_on: Subflow) -> None:
        number, standing, sequence = frame.number("subflow"), frame.word("standing"), frame.number("sequence")
        if standing == "gone" and number == said_on.number:
            raise Violation(0x03, "a subflow that is gone speaks")
        if number not in self.subflows or (standing != "gone" and sequence < self._next_standing.get(number, 0)):
            return
        self._next_standing[number] = sequence + 1
        say(f"standing {standing}")
        self.standings[number] = standing
        if standing == "gone":
            self.lose(self.subflows[number])
        elif standing == "suspect":
            self._repeat(number, self.voice())

    def progress(self, stream: Stream) -> None:
        stream.send(bytes(stream.received[self._echoed.get(stream.number, 0) :]))
        self._echoed[stream.number] = len(stream.received)
        if stream.is_received:
            stream.finish()

    def say_again(self, lost: int, other: Subflow) -> None:
        for stream in self.streams.values():
            self._say_opened(stream, other)


Deed = Callable[[Session, Stream, Subflow], None]


def echo(session: Session, stream: Stream, subflow: Subflow) -> None:
    """Nothing but what every stream gets."""


def advertise(session: Session, stream: Stream, subflow: Subflow) -> None:
    host, port = session.relay.join_address
    subflow.write(Frame("ADVERTISE", {"address": f"{host}:{port}"}))


def drain(session: Session, stream: Stream, subflow: Subflow) -> None:
    for subflow in session.subflows.values():
        subflow.write(Frame("DRAIN"))


def skipped(session: Session, stream: Stream, subflow: Subflow) -> None:
    for type_ in (0x40, 0xFF):
        subflow.write_octets(raw(type_, bytes(1000)))


def unknown_type(session: Session, stream: Stream, subflow: Subflow) -> None:
    subflow.write_octets(raw(0x3F, b""))


def misplaced(session: Session, stream: Stream, subflow: Subflow) -> None:
    subflow.write(session.relay.greeting)


def beyond_window(session: Session, stream: Stream, subflow: Subflow) -> None:
    fields: Fields = {"stream": stream.number, "dsn": 2**40, "idle": False, "fin": False, "bytes": b"x"}
    subflow.write(Frame("DATA", fields))


def never_sent(session: Session, stream: Stream, subflow: Subflow) -> None:
    subflow.write(Frame("ACK", {"stream": stream.number, "data_ack": 2**40, "window": FIRST_STREAM_WINDOW}))


def never_opened(session: Session, stream: Stream, subflow: Subflow) -> None:
    subflow.write(Frame("OPENED", {"stream": stream.number + 1000, "result": "connected"}))


DEEDS: dict[str, Deed] = {
    "advertise": advertise,
    "drain": drain,
    "skipped": skipped,
    "unknown-type": unknown_type,
    "misplaced": misplaced,
    "beyond-window": beyond_window,
    "never-sent": never_sent,
    "never-opened": never_opened,
}


class Relay:
    """Listens, and carries all sessions."""

    def __init__(self, identity: str, host: str, port: int, join_port: int) -> None:
        self.join_address = (host, join_port)
        limits: Fields = {"max_streams": MOST_STREAMS, "max_subflows": MOST_SUBFLOWS, "linger": LINGER}
        fields: Fields = {"version": VERSION, **limits, "address": ""}
        self.greeting = Frame("HELLO_OK", fields)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls.load_cert_chain(identity)
        self._tls.set_alpn_protocols([ALPN])
        self._selector = selectors.DefaultSelector()
        self._sessions: dict[bytes, Session] = {}
        self._owners: dict[Subflow, Session] = {}
        for at in (port, join_port):
            listener = socket.create_server((host, at))
            self._selector.register(listener, selectors.EVENT_READ, at)

    def run(self) -> None:
        """Works until it is killed."""
        say("listens")
        while True:
            for session in list(self._sessions.values()):
                self._carry(session, session.send)
                self._carry(session, session.watch)
            for subflow in self._owners:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if subflow.has_unsent else 0)
                self._selector.modify(subflow, events, subflow)
            for key, _ in self._selector.select(0.05):
                if isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj, key.data)
                elif key.data in self._owners:
                    session = self._owners[key.data]
                    self._carry(session, lambda: session.receive(key.data))
                elif isinstance(key.data, Subflow):
                    self._greet(key.data)

    def _carry(self, session: Session, work: Callable[[], None]) -> None:
        """Does this, and forgets a session that is over."""
        try:
            work()
        except SessionOver as over:
            say(f"close {over.code:#x}")
            session.close()
            self._sessions.pop(session.key, None)
        except Violation as violation:
            say(f"violation {violation}")
            self._sessions.pop(session.key, None)
        for code in session.closes.values():
            if not code & 0x100:
                say(f"close {code:#x}")
        session.closes.clear()

    def _accept(self, listener: socket.socket, port: int) -> None:
        connection, _ = listener.accept()
        # The handshake happens while the HELLO is read, so that nobody waits for it.
        tls = self._tls.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
        subflow = Subflow(-1, tls, str(port))
        self._selector.register(subflow, selectors.EVENT_READ, subflow)

    def _greet(self, subflow: Subflow) -> None:
        try:
            frames = subflow.read(most=1)
        except Refused:
            frames = None
        if frames is None:
            self.forget(subflow)
            subflow.close()
        elif frames:
            self._admit(frames[0], subflow)

    def _admit(self, hello: Frame, subflow: Subflow) -> None:
        code = 0
        if hello.name != "HELLO" or hello["version"] != VERSION:
            code = 0x01
        elif hello["kind"] == "join" and hello.octets("key") not in self._sessions:
            code = 0x111
        if code:
            subflow.write(Frame("CLOSE", {"code": code, "text": ""}))
            subflow.finish()
            self.forget(subflow)
            subflow.close()
            return
        key = hello.octets("key")
        session = self._sessions.setdefault(key, Session(self, key))
        subflow.number = hello.number("subflow")
        if subflow.number in session.used_numbers:
            raise AssertionError(f"the device used {subflow.number} again")
        session.used_numbers.add(subflow.number)
        say(f"{hello.word('kind')} {subflow.interface}{' backup' if hello['backup'] else ''}")
        subflow.write(self.greeting)
        session.standings[subflow.number] = "backup" if hello["backup"] else "normal"
        self._owners[subflow] = session
        self._carry(session, lambda: session.attach(subflow))
        self._carry(session, lambda: session.receive(subflow))

    def forget(self, subflow: Subflow) -> None:
        """A subflow is waited for no more."""
        self._owners.pop(subflow, None)
        self._selector.unregister(subflow)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    identity, host, port, join_port = sys.argv[1:]
    Relay(identity, host, int(port), int(join_port)).run()


if __name__ == "__main__":
    main()
