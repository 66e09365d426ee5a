"""Both directions of one stream: docs/protocol.md, "Streams"."""

from __future__ import annotations

from dataclasses import dataclass

from wire import Frame

FIRST_STREAM_WINDOW = 65536
STREAM_WINDOW = 4 * FIRST_STREAM_WINDOW
MOST_PAYLOAD = 16000
"""With its header a DATA frame still fits into one TLS record."""

MOST_PIECES = 4096
"""DATA frames outstanding of a stream, and runs behind gaps."""


class Violation(Exception):
    """The relay broke a must; `code` is for CLOSE."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Piece:
    """Bytes that were sent and are not acknowledged; the end takes a sequence number behind them."""

    dsn: int
    data: bytes
    fin: bool
    subflow: int | None
    """Where it went last; None while it is to be sent again."""

    @property
    def end(self) -> int:
        return self.dsn + len(self.data) + self.fin


class Stream:
    """One connection through the relay."""

    def __init__(self, number: int, open_frame: Frame) -> None:
        self.number = number
        self.open_frame = open_frame
        self.opened_on: set[int] = set()
        """Subflows that carried OPEN."""
        self.is_known = False
        """Whether a frame of the relay's about it has come."""
        self.result: str | None = None
        self.reset_code: int | None = None
        self.reset: Frame | None = None
        """The RESET by which this end gave the stream up."""
        # What is sent.
        self.pending = bytearray()
        self.finishing = False
        self.pieces: list[Piece] = []
        self.sent = 0
        """One past the highest byte that was sent."""
        self.fin_sent = False
        self.acknowledged = 0
        self.window = FIRST_STREAM_WINDOW
        # What is received.
        self.received = bytearray()
        self.early: dict[int, bytes] = {}
        """Runs behind a gap, by their DSN."""
        self.highest = 0
        self.end: int | None = None
        self.granted = FIRST_STREAM_WINDOW

    def send(self, data: bytes) -> None:
        self.pending += data

    def finish(self) -> None:
        self.finishing = True

    @property
    def is_received(self) -> bool:
        return self.end is not None and len(self.received) == self.end

    @property
    def is_sent(self) -> bool:
        return self.fin_sent and not self.pieces

    @property
    def is_over(self) -> bool:
        return self.reset_code is not None or (self.is_received and self.is_sent)

    @property
    def data_ack(self) -> int:
        return len(self.received) + self.is_received

    def acknowledge(self, data_ack: int, window: int) -> None:
        """Forgets what has arrived, perhaps a part of a piece."""
        if data_ack > self.sent + self.fin_sent:
            raise Violation(0x106, f"stream {self.number}: an acknowledgment of what was not sent")
        self.window = max(self.window, window)
        self.acknowledged = max(self.acknowledged, data_ack)
        self.pieces = [piece for piece in self.pieces if piece.end > data_ack]
        for piece in self.pieces[:1]:
            known = max(0, min(data_ack - piece.dsn, len(piece.data)))
            piece.dsn, piece.data = piece.dsn + known, piece.data[known:]

    def take_back(self, subflow: int) -> None:
        """What only this subflow carried is to be sent again."""
        for piece in self.pieces:
            if piece.subflow == subflow:
                piece.subflow = None

    def next_piece(self, session_room: int) -> Piece | None:
        """What goes next: first what is to be sent again."""
        for piece in self.pieces:
            if piece.subflow is None:
                return piece
        room = min(MOST_PAYLOAD, self.window - self.sent, session_room)
        data = bytes(self.pending[: max(0, room)])
        fin = self.finishing and not self.fin_sent and len(data) == len(self.pending)
        if not (data or fin) or len(self.pieces) >= MOST_PIECES:
            return None
        del self.pending[: len(data)]
        piece = Piece(self.sent, data, fin, None)
        self.pieces.append(piece)
        self.sent += len(data)
        self.fin_sent |= fin
        return piece

    def receive(self, dsn: int, data: bytes, fin: bool) -> int:
        """Takes what arrived; gives by how much the highest DSN rose."""
        end = dsn + len(data)
        if end > self.granted:
            raise Violation(0x105, f"stream {self.number}: {end} is beyond {self.granted}")
        if self.end is not None and (end > self.end or (fin and end != self.end)) or (fin and end < self.highest):
            raise Violation(0x106, f"stream {self.number}: behind its end")
        if fin:
            self.end = end
        risen = max(0, end - self.highest)
        self.highest += risen
        if end > len(self.received) and len(data) > len(self.early.get(dsn, b"")):
            self.early[dsn] = data
        for start in sorted(self.early):
            if start > len(self.received):
                break
            run = self.early.pop(start)
            self.received += run[len(self.received) - start :]
        if len(self.early) > MOST_PIECES:
            raise Violation(0x105, f"stream {self.number}: too many gaps")
        return risen
