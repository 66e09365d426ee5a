"""The device's end of docs/protocol.md, written from that document alone.

It sends no early data and makes no use of TCP Fast Open: Python's `ssl` offers neither, and both are optional.
"""

from __future__ import annotations

import ipaddress
import secrets
import selectors
import time
from typing import Callable, Iterable

from stream import STREAM_WINDOW, Stream, Violation
from subflow import Invite, Subflow, parse_address
from wire import Frame, Refused

VERSION = 1
FIRST_SESSION_WINDOW = 262144
SESSION_WINDOW = 4 * FIRST_SESSION_WINDOW
SILENCE = 1.0
"""Seconds without a sign of a subflow that should give one, after which it is asked."""

PATIENCE = 3.0
"""Seconds for an answer to that."""


class SessionOver(Exception):
    """The relay ended the session, or no subflow is left."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code:#x} {text}")
        self.code = code


class Session:
    """What this device and the relay share."""

    def __init__(self, invite: Invite) -> None:
        self.invite = invite
        self.key = secrets.token_bytes(16)
        self.subflows: dict[int, Subflow] = {}
        self.streams: dict[int, Stream] = {}
        self.next_subflow = 0
        self.next_stream = 0
        self.join_address = invite.address
        self.greeting: Frame | None = None
        """HELLO_OK of the first subflow."""
        self.drains: set[int] = set()
        """Subflows that said DRAIN."""
        self.standings: dict[int, str] = {}
        self.closes: dict[int, int] = {}
        """Codes of the CLOSE of subflows that are gone."""
        self.relay_rto: int | None = None
        self.pongs = 0
        self.answers: dict[int, int] = {}
        """Subflows that brought a RESET as the answer about a stream that is over."""
        # The session's windows: what was sent and may be, what was received, read and granted.
        self.sent = 0
        self.window = FIRST_SESSION_WINDOW
        self.received = 0
        self.read = 0
        self.granted = FIRST_SESSION_WINDOW
        self._greeted: set[int] = set()
        self._asked: dict[int, dict[int, float]] = {}
        """Values of PING without an answer, by subflow, with when they were asked."""
        self._heard: dict[int, float] = {}
        self._last_words: dict[int, int] = {}
        """Which subflow carried the last ACK or RESET of a stream that is over."""
        self._selector = selectors.DefaultSelector()

    def begin(self, interface: str) -> Subflow:
        """The first subflow."""
        subflow = self._connect(interface, self.invite.address, {"kind": "init", "token": self.invite.token})
        self.run(lambda: subflow.number in self._greeted)
        return subflow

    def join(self, interface: str, backup: bool = False) -> Subflow:
        """Another subflow."""
        subflow = self._connect(interface, self.join_address, {"kind": "join"}, backup)
        self.run(lambda: subflow.number in self._greeted)
        return subflow

    def _connect(
        self, interface: str, address: tuple[str, int], kind: dict[str, str | bytes], backup: bool = False
    ) -> Subflow:
        number = self.next_subflow
        self.next_subflow += 1
        subflow = Subflow(number, self.invite, address, interface)
        hello = {"version": VERSION, "key": self.key, "subflow": number, "path": number + 1, "backup": backup}
        subflow.write(Frame("HELLO", {**hello, **kind}))
        self.subflows[number] = subflow
        self._asked[number] = {}
        self._heard[number] = time.monotonic()
        self._selector.register(subflow, selectors.EVENT_READ, subflow)
        return subflow

    def open(self, host: str, port: int, scheduler: str = "min_rtt") -> Stream:
        """A stream to a name or an address; bytes may be sent at once."""
        if self.drains:
            raise SessionOver(0, "the relay takes no new streams; begin another session")
        stream = self.reserve(host, port, scheduler)
        self._say_open(stream, next(iter(self.subflows.values())))
        return stream

    def reserve(self, host: str, port: int, scheduler: str = "min_rtt") -> Stream:
        """A stream of which nothing is said yet."""
        number = self.next_stream
        self.next_stream += 1
        fields = {"stream": number, "class": "auto", "scheduler": scheduler, kind_of(host): host, "port": port}
        self.streams[number] = Stream(number, Frame("OPEN", fields))
        return self.streams[number]

    def reset(self, stream: Stream, code: int = 0) -> None:
        """Gives a stream up in both directions. It is over when the relay answers."""
        stream.reset = reset_frame(stream.number, code, stream.sent, "no")
        next(iter(self.subflows.values())).write(stream.reset)

    def ping(self, subflow: Subflow) -> None:
        value = secrets.randbits(64)
        self.expect_pongs(subflow, [value])
        subflow.write(Frame("PING", {"value": value}))

    def expect_pongs(self, subflow: Subflow, values: Iterable[int]) -> None:
        """These are asked in PINGs."""
        now = time.monotonic()
        self._asked[subflow.number].update((value, now) for value in values)

    def stand(self, number: int, standing: str) -> None:
        """Tells the relay how it shall use a subflow, over another one if there is any."""
        self.standings[number] = standing
        others = [subflow for subflow in self.subflows.values() if subflow.number != number]
        for subflow in (others or list(self.subflows.values()))[:1]:
            subflow.write(Frame("PRIORITY", {"subflow": number, "standing": standing}))

    def ask_rto(self, subflow: Subflow) -> None:
        subflow.write(Frame("RTO_REQUEST"))

    def close(self) -> None:
        """Ends the session in good order."""
        for subflow in list(self.subflows.values()):
            self.leave(subflow, 0x100)

    def leave(self, subflow: Subflow, code: int = 0, text: str = "") -> None:
        """Says CLOSE, and nothing more. What the subflow carried goes over others."""
        subflow.write(Frame("CLOSE", {"code": code, "text": text}))
        subflow.finish()
        self._lose(subflow)

    def run(self, until: Callable[[], bool], seconds: float = 60.0) -> None:
        """Carries everything until something is so."""
        deadline = time.monotonic() + seconds
        while not until():
            if not self.subflows:
                raise SessionOver(0, f"no subflow is left: {self.closes}")
            if time.monotonic() > deadline:
                raise TimeoutError("in vain")
            self._step()

    def _step(self) -> None:
        for subflow in list(self.subflows.values()):
            self._guard(subflow, self._fill)
        for subflow in self.subflows.values():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if subflow.has_unsent else 0)
            self._selector.modify(subflow, events, subflow)
        ready = [key.data for key, _ in self._selector.select(0.05)]
        for subflow in ready:
            self._guard(subflow, self._serve)
        for subflow in list(self.subflows.values()):
            self._guard(subflow, self._watch)

    def _guard(self, subflow: Subflow, work: Callable[[Subflow], None]) -> None:
        """Does this and takes the consequences for the subflow."""
        try:
            if subflow.number in self.subflows:
                work(subflow)
        except Violation as violation:
            ended = self.subflows.values() if violation.code & 0x100 else [subflow]
            for subflow in list(ended):
                self.leave(subflow, violation.code, str(violation))
            raise
        except OSError:
            # Why may have arrived before the connection was reset.
            for frame in self._read(subflow) or []:
                if frame.name == "CLOSE":
                    self._handle(frame, subflow, {})
            self._lose(subflow)

    # What goes out.

    def _fill(self, subflow: Subflow) -> None:
        """Sends data while the subflow takes it, a piece of each stream in turn."""
        subflow.flush()
        progress = True
        while progress:
            progress = False
            for stream in self.streams.values():
                if subflow.has_room and not stream.is_over and stream.reset is None:
                    progress |= self._send_piece(stream, subflow)

    def _send_piece(self, stream: Stream, subflow: Subflow) -> bool:
        sent_before = stream.sent
        piece = stream.next_piece(self.window - self.sent)
        if piece is None:
            return False
        self.sent += stream.sent - sent_before
        if not stream.is_known and subflow.number not in stream.opened_on:
            self._say_open(stream, subflow)
        piece.subflow = subflow.number
        fields = {"stream": stream.number, "dsn": piece.dsn, "idle": not stream.pending, "fin": piece.fin}
        subflow.write(Frame("DATA", {**fields, "bytes": piece.data}))
        return True

    def _say_open(self, stream: Stream, subflow: Subflow) -> None:
        stream.opened_on.add(subflow.number)
        subflow.write(stream.open_frame)

    def _say_ack(self, stream: Stream, subflow: Subflow) -> None:
        stream.granted = max(stream.granted, len(stream.received) + STREAM_WINDOW)
        fields = {"stream": stream.number, "data_ack": stream.data_ack, "window": stream.granted}
        subflow.write(Frame("ACK", fields))

    def _say_window(self, subflow: Subflow) -> None:
        self.granted = max(self.granted, self.read + SESSION_WINDOW)
        subflow.write(Frame("WINDOW", {"bytes": self.granted}))

    # What comes in.

    def _serve(self, subflow: Subflow) -> None:
        subflow.flush()
        frames = self._read(subflow)
        if frames is None:
            self._lose(subflow)
            return
        self._heard[subflow.number] = time.monotonic()
        touched: dict[int, Stream] = {}
        for frame in frames:
            if subflow.number not in self.subflows:
                return
            self._handle(frame, subflow, touched)
        for stream in touched.values():
            if stream.reset or stream.number not in self.streams:
                continue
            self._say_ack(stream, subflow)
            if stream.is_over:
                del self.streams[stream.number]
                self._last_words[stream.number] = subflow.number
        if self.granted - self.read < SESSION_WINDOW // 2:
            self._say_window(subflow)

    def _read(self, subflow: Subflow) -> list[Frame] | None:
        try:
            return subflow.read()
        except Refused as refused:
            raise Violation(0x02, str(refused)) from refused

    def _handle(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        if (subflow.number in self._greeted) == (frame.name == "HELLO_OK") and frame.name != "CLOSE":
            raise Violation(0x03, f"{frame.name} is out of place")
        if frame.name == "HELLO_OK":
            self._greeted.add(subflow.number)
            self.greeting = self.greeting or frame
            if frame["address"]:
                self.join_address = parse_address(str(frame["address"]))
        elif frame.name == "PING":
            subflow.write(Frame("PONG", {"value": frame["value"]}))
        elif frame.name == "PONG":
            if self._asked[subflow.number].pop(int(frame["value"]), None) is None:
                raise Violation(0x03, "a PONG that was not asked for")
            self.pongs += 1
        elif frame.name == "RTO_REQUEST":
            subflow.write(Frame("RTO", {"micros": subflow.rto_micros()}))
        elif frame.name == "RTO":
            self.relay_rto = int(frame["micros"])
        elif frame.name == "ADVERTISE":
            self.join_address = parse_address(str(frame["address"]))
        elif frame.name == "DRAIN":
            self.drains.add(subflow.number)
        elif frame.name == "CLOSE":
            self.closes[subflow.number] = int(frame["code"])
            if int(frame["code"]) & 0x100:
                raise SessionOver(int(frame["code"]), str(frame["text"]))
            self._lose(subflow)
        elif frame.name == "WINDOW":
            self.window = max(self.window, int(frame["bytes"]))
        elif frame.name in ("OPENED", "DATA", "ACK", "RESET"):
            self._handle_stream(frame, subflow, touched)
        elif frame.name != "PIPE_STATUS":
            raise Violation(0x03, f"{frame.name} is the device's to say")

    def _handle_stream(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        number = int(frame["stream"])
        if number >= self.next_stream:
            raise Violation(0x104, f"stream {number} was never opened")
        stream = self.streams.get(number)
        if stream is None:
            # It was forgotten. Nothing is answered to an answer, or there would be no end.
            if frame.name == "DATA" or (frame.name == "RESET" and frame["answer"] == "no"):
                subflow.write(reset_frame(number, 0, 0, "yes"))
            elif frame.name == "RESET":
                self.answers[number] = subflow.number
            return
        stream.is_known = True
        if frame.name == "OPENED":
            stream.result = str(frame["result"])
        elif frame.name == "ACK":
            stream.acknowledge(int(frame["data_ack"]), int(frame["window"]))
            if stream.is_over:
                touched[number] = stream
        elif frame.name == "DATA":
            known = len(stream.received)
            self.received += stream.receive(int(frame["dsn"]), bytes(frame["bytes"]), bool(frame["fin"]))
            self.read += len(stream.received) - known
            if self.received > self.granted:
                raise Violation(0x105, "beyond the session's window")
            touched[number] = stream
        else:
            self._handle_reset(stream, frame, subflow)

    def _handle_reset(self, stream: Stream, frame: Frame, subflow: Subflow) -> None:
        end = int(frame["end"])
        if end > stream.granted:
            raise Violation(0x105, f"stream {stream.number}: {end} is beyond {stream.granted}")
        is_too_low = end < stream.highest and frame["answer"] == "no"
        if is_too_low or (stream.end is not None and end > stream.end):
            raise Violation(0x106, f"stream {stream.number}: its end is not {end}")
        # What will not come counts as received and read.
        self.received += max(0, end - stream.highest)
        self.read += max(end, stream.highest) - len(stream.received)
        if frame["answer"] == "no":
            subflow.write(reset_frame(stream.number, 0, stream.sent, "yes"))
            self._last_words[stream.number] = subflow.number
        if frame["answer"] == "yes" and stream.is_received and stream.fin_sent and stream.reset is None:
            stream.pieces.clear()
        else:
            stream.reset_code = int(frame["code"])
        self.streams.pop(stream.number)

    # Subflows that fail.

    def _watch(self, subflow: Subflow) -> None:
        """Asks a silent subflow, and gives it up when it does not answer."""
        now = time.monotonic()
        asked = self._asked[subflow.number]
        if asked and now - max(self._heard[subflow.number], min(asked.values())) > PATIENCE:
            self._lose(subflow)
        elif not asked and self.streams and now - self._heard[subflow.number] > SILENCE:
            self.ping(subflow)

    def _forget(self, subflow: Subflow) -> None:
        del self.subflows[subflow.number]
        self._selector.unregister(subflow)
        subflow.close()

    def _lose(self, subflow: Subflow) -> None:
        """A subflow is gone: what it carried and is not acknowledged goes over another one."""
        if subflow.number not in self.subflows:
            return
        self._forget(subflow)
        for other in list(self.subflows.values())[:1]:
            self._guard(other, lambda other: self._move(subflow.number, other))

    def _move(self, lost: int, other: Subflow) -> None:
        self.standings[lost] = "gone"
        for number, standing in self.standings.items():
            if number != other.number or standing != "gone":
                other.write(Frame("PRIORITY", {"subflow": number, "standing": standing}))
        self._say_window(other)
        for stream in self.streams.values():
            for piece in stream.pieces:
                if piece.subflow == lost:
                    piece.subflow = None
            if not stream.is_known and other.number not in stream.opened_on:
                self._say_open(stream, other)
            if stream.reset:
                other.write(stream.reset)
            else:
                self._say_ack(stream, other)
        for number, carrier in self._last_words.items():
            if carrier == lost:
                other.write(reset_frame(number, 0, 0, "yes"))
                self._last_words[number] = other.number


def reset_frame(stream: int, code: int, end: int, answer: str) -> Frame:
    return Frame("RESET", {"stream": stream, "code": code, "end": end, "answer": answer})


def kind_of(host: str) -> str:
    """What OPEN calls it."""
    try:
        return f"ipv{ipaddress.ip_address(host).version}"
    except ValueError:
        return "name"
