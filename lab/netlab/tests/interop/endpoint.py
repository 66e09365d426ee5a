"""What both ends of a session do: docs/protocol.md, without what only one of them may say."""

from __future__ import annotations

import secrets
import time
from typing import Callable, Iterable

from stream import STREAM_WINDOW, Stream, Violation
from subflow import Subflow
from wire import Frame, Refused

VERSION = 1
FIRST_SESSION_WINDOW = 262144
SILENCE = 1.0
"""Seconds without a sign of a subflow that should give one, after which it is asked."""

PATIENCE = 3.0
"""Seconds for an answer to that."""


class SessionOver(Exception):
    """The far end ended the session, or no subflow is left."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code:#x} {text}")
        self.code = code


class Endpoint:
    """One end of a session."""

    def __init__(self) -> None:
        self.subflows: dict[int, Subflow] = {}
        self.streams: dict[int, Stream] = {}
        self.closes: dict[int, int] = {}
        """Codes of the CLOSE of subflows that are gone."""
        self.standings: dict[int, str] = {}
        """How the relay shall use subflows."""
        self.far_rto: int | None = None
        self.pongs = 0
        self.answers: dict[int, int] = {}
        """Subflows that brought a RESET as the answer about a stream that is over."""
        # The session's windows: what was sent and may be, what was received, read and granted.
        self.sent = 0
        self.window = FIRST_SESSION_WINDOW
        self.received = 0
        self.read = 0
        self.granted = FIRST_SESSION_WINDOW
        self.most_streams = FIRST_SESSION_WINDOW // STREAM_WINDOW
        """Streams there may be, each of which may use its window up."""
        self._asked: dict[int, dict[int, float]] = {}
        """Values of PING without an answer, by subflow, with when they were asked."""
        self._heard: dict[int, float] = {}
        self._last_words: dict[int, int] = {}
        """Which subflow carried the last ACK or RESET of a stream that is over."""
        self._unsaid: set[int] = set()
        """Subflows that were lost when there was no other."""

    def attach(self, subflow: Subflow) -> None:
        """Another subflow, behind HELLO."""
        self.subflows[subflow.number] = subflow
        self._asked[subflow.number] = {}
        self._heard[subflow.number] = time.monotonic()
        for lost in self._unsaid:
            self._repeat(lost, subflow)
        self._unsaid.clear()

    def ping(self, subflow: Subflow) -> None:
        value = secrets.randbits(64)
        self.expect_pongs(subflow, [value])
        subflow.write(Frame("PING", {"value": value}))

    def expect_pongs(self, subflow: Subflow, values: Iterable[int]) -> None:
        """These are asked in PINGs."""
        now = time.monotonic()
        self._asked[subflow.number].update((value, now) for value in values)

    def reset(self, stream: Stream, code: int = 0) -> None:
        """Gives a stream up in both directions. It is over when the far end answers."""
        stream.reset = reset_frame(stream.number, code, stream.sent, "no")
        self.voice().write(stream.reset)

    def leave(self, subflow: Subflow, code: int = 0, text: str = "") -> None:
        """Says CLOSE, and nothing more. What the subflow carried goes over others."""
        subflow.write(Frame("CLOSE", {"code": code, "text": text}))
        subflow.finish()
        self.lose(subflow)

    def close(self, code: int = 0x100, text: str = "") -> None:
        """Ends the session."""
        for subflow in list(self.subflows.values()):
            self.leave(subflow, code, text)

    def usable(self) -> list[Subflow]:
        """Subflows for what is sent: normal ones, else backups, else what there is."""
        for standing in ("normal", "backup"):
            found = [it for it in self.subflows.values() if self.standings.get(it.number, "normal") == standing]
            if found:
                return found
        return list(self.subflows.values())

    def voice(self, rather: Subflow | None = None) -> Subflow:
        """The subflow for what any may carry."""
        usable = self.usable()
        return rather if rather in usable else usable[0]

    # What carries everything: called in turn.

    def send(self) -> None:
        """Writes what sockets take."""
        for subflow in list(self.subflows.values()):
            self._guard(subflow, self._fill)

    def receive(self, subflow: Subflow) -> None:
        """Takes what has arrived."""
        self._guard(subflow, self._serve)

    def watch(self) -> None:
        """Asks silent subflows, and gives those up that do not answer."""
        for subflow in list(self.subflows.values()):
            self._guard(subflow, self._watch)

    def _guard(self, subflow: Subflow, work: Callable[[Subflow], None]) -> None:
        """Does this and takes the consequences for the subflow."""
        try:
            if self.subflows.get(subflow.number) is subflow:
                work(subflow)
        except Violation as violation:
            if violation.code & 0x100:
                self.close(violation.code, str(violation))
            else:
                self.leave(subflow, violation.code, str(violation))
            raise
        except OSError:
            # Why may have arrived before the connection was reset.
            for frame in self._read(subflow) or []:
                if frame.name == "CLOSE":
                    self._handle(frame, subflow, {})
            self.lose(subflow)

    # What goes out.

    def _fill(self, subflow: Subflow) -> None:
        """Sends data while the subflow takes it, a piece of each stream in turn."""
        subflow.flush()
        progress = subflow in self.usable()
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
        self.say_first(stream, subflow)
        piece.subflow = subflow.number
        fields = {"stream": stream.number, "dsn": piece.dsn, "idle": not stream.pending, "fin": piece.fin}
        subflow.write(Frame("DATA", {**fields, "bytes": piece.data}))
        return True

    def say_first(self, stream: Stream, subflow: Subflow) -> None:
        """Says what must come before anything else about a stream on this subflow."""

    def say_ack(self, stream: Stream, subflow: Subflow) -> None:
        stream.granted = max(stream.granted, len(stream.received) + STREAM_WINDOW)
        fields = {"stream": stream.number, "data_ack": stream.data_ack, "window": stream.granted}
        subflow.write(Frame("ACK", fields))

    def _say_window(self, subflow: Subflow) -> None:
        self.granted = max(self.granted, self.read + self.most_streams * STREAM_WINDOW)
        subflow.write(Frame("WINDOW", {"bytes": self.granted}))

    # What comes in.

    def _serve(self, subflow: Subflow) -> None:
        subflow.flush()
        frames = self._read(subflow)
        if frames is None:
            self.lose(subflow)
            return
        self._heard[subflow.number] = time.monotonic()
        touched: dict[int, Stream] = {}
        for frame in frames:
            if subflow.number not in self.subflows:
                return
            self._handle(frame, subflow, touched)
        for stream in touched.values():
            self.progress(stream)
        if not self.subflows:
            return
        voice = self.voice(subflow)
        for stream in touched.values():
            self._answer(stream, voice)
        if self.granted - self.read < self.most_streams * STREAM_WINDOW // 2:
            self._say_window(voice)

    def _answer(self, stream: Stream, voice: Subflow) -> None:
        """Says how far a stream has come. One that is over is forgotten with that."""
        if stream.reset or stream.number not in self.streams:
            return
        self.say_ack(stream, voice)
        if stream.is_over:
            del self.streams[stream.number]
            self._last_words[stream.number] = voice.number

    def progress(self, stream: Stream) -> None:
        """Something arrived."""

    def _read(self, subflow: Subflow) -> list[Frame] | None:
        try:
            return subflow.read()
        except Refused as refused:
            raise Violation(0x02, str(refused)) from refused

    def _handle(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        if frame.name == "PING":
            subflow.write(Frame("PONG", {"value": frame["value"]}))
        elif frame.name == "PONG":
            if self._asked[subflow.number].pop(frame.number("value"), None) is None:
                raise Violation(0x03, "a PONG that was not asked for")
            self.pongs += 1
        elif frame.name == "RTO_REQUEST":
            subflow.write(Frame("RTO", {"micros": subflow.rto_micros()}))
        elif frame.name == "RTO":
            self.far_rto = frame.number("micros")
        elif frame.name == "CLOSE":
            self.closes[subflow.number] = frame.number("code")
            self.lose(subflow)
            if frame.number("code") & 0x100:
                raise SessionOver(frame.number("code"), frame.word("text"))
        elif frame.name == "WINDOW":
            self.window = max(self.window, frame.number("bytes"))
        elif frame.name in ("DATA", "ACK", "RESET"):
            self._handle_stream(frame, subflow, touched)
        elif frame.name != "PIPE_STATUS":
            self.handle_own(frame, subflow, touched)

    def handle_own(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        """A frame that only the far end may say."""
        raise Violation(0x03, f"{frame.name} is not for the far end to say")

    def is_seen(self, number: int) -> bool:
        """Whether a stream of this number was opened."""
        raise NotImplementedError

    def _handle_stream(self, frame: Frame, subflow: Subflow, touched: dict[int, Stream]) -> None:
        number = frame.number("stream")
        if not self.is_seen(number):
            raise Violation(0x104, f"stream {number} was never opened")
        stream = self.streams.get(number)
        if stream is None:
            # It is over. Nothing is answered to an answer, or there would be no end.
            if frame.name == "DATA" or (frame.name == "RESET" and frame["answer"] == "no"):
                subflow.write(reset_frame(number, 0, 0, "yes"))
            elif frame.name == "RESET":
                self.answers[number] = subflow.number
            return
        stream.is_known = True
        if frame.name == "ACK":
            stream.acknowledge(frame.number("data_ack"), frame.number("window"))
            if stream.is_over:
                touched[number] = stream
        elif frame.name == "DATA":
            known = len(stream.received)
            self.received += stream.receive(frame.number("dsn"), frame.octets("bytes"), frame.flag("fin"))
            self.read += len(stream.received) - known
            if self.received > self.granted:
                raise Violation(0x105, "beyond the session's window")
            touched[number] = stream
        else:
            self._handle_reset(stream, frame, subflow)

    def _handle_reset(self, stream: Stream, frame: Frame, subflow: Subflow) -> None:
        end = frame.number("end")
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
            stream.reset_code = frame.number("code")
        del self.streams[stream.number]

    # Subflows that fail.

    def _watch(self, subflow: Subflow) -> None:
        now = time.monotonic()
        asked = self._asked[subflow.number]
        if asked and now - max(self._heard[subflow.number], min(asked.values())) > PATIENCE:
            self.lose(subflow)
        elif not asked and self.streams and now - self._heard[subflow.number] > SILENCE:
            self.ping(subflow)

    def lose(self, subflow: Subflow) -> None:
        """A subflow is gone: what it carried and is not known to have arrived goes over another one."""
        if self.subflows.pop(subflow.number, None) is None:
            return
        self.detach(subflow)
        subflow.close()
        self._unsaid.add(subflow.number)
        if self.subflows:
            self._unsaid.remove(subflow.number)
            self._guard(self.voice(), lambda other: self._repeat(subflow.number, other))

    def detach(self, subflow: Subflow) -> None:
        """A subflow is waited for no more."""

    def _repeat(self, lost: int, other: Subflow) -> None:
        self.say_again(lost, other)
        self._say_window(other)
        for stream in list(self.streams.values()):
            stream.take_back(lost)
            self.say_first(stream, other)
            if stream.reset:
                other.write(stream.reset)
            self._answer(stream, other)
        for number, carrier in self._last_words.items():
            if carrier == lost:
                other.write(reset_frame(number, 0, 0, "yes"))
                self._last_words[number] = other.number

    def say_again(self, lost: int, other: Subflow) -> None:
        """Says what only this end may say and the lost subflow may have carried."""


def reset_frame(stream: int, code: int, end: int, answer: str) -> Frame:
    return Frame("RESET", {"stream": stream, "code": code, "end": end, "answer": answer})
