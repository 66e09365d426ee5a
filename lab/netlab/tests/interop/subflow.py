"""An invite, and TCP connections with TLS that carry frames to and from the relay it names."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
from dataclasses import dataclass

from wire import Frame, Incomplete, decode, encode

ALPN = "multiway/1"
PATIENCE = 15.0
"""Seconds for a connection and its handshake."""

FAREWELL = 2.0
"""Seconds for the last words."""

UNSENT = 64 * 1024
"""Octets that may wait here; what is not written yet can still take another subflow."""


class Distrusted(Exception):
    """The far end has another key than the invite's."""


@dataclass(frozen=True)
class Invite:
    """What `multiway://HOST:PORT/#DATA` says."""

    address: tuple[str, int]
    pin: bytes
    token: bytes

    @staticmethod
    def parse(url: str) -> Invite:
        scheme, _, rest = url.partition("://")
        address, _, data = rest.partition("/#")
        octets = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
        if scheme != "multiway" or len(octets) < 33 or octets[0] != 1:
            raise ValueError("no invite")
        return Invite(parse_address(address), octets[1:33], octets[33:])


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, where an address of IPv6 stands in brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def der_parts(der: bytes) -> list[bytes]:
    """The values in a DER value, each with its header."""
    parts, at = [], 0
    content = der_content(der)
    while at < len(content):
        size = der_size(content[at:])
        parts.append(content[at : at + size])
        at += size
    return parts


def der_header(der: bytes) -> tuple[int, int]:
    """Octets of the header and of the content."""
    if der[1] < 0x80:
        return 2, der[1]
    count = der[1] & 0x7F
    return 2 + count, int.from_bytes(der[2 : 2 + count], "big")


def der_size(der: bytes) -> int:
    return sum(der_header(der))


def der_content(der: bytes) -> bytes:
    header, content = der_header(der)
    return der[header : header + content]


def public_key(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of an X.509 certificate (RFC 5280 section 4.1)."""
    tbs_parts = der_parts(der_parts(certificate)[0])
    has_version = tbs_parts[0][0] == 0xA0
    return tbs_parts[6 if has_version else 5]


class Subflow:
    """One connection over one network. It knows frames, not what they mean."""

    def __init__(self, number: int, connection: ssl.SSLSocket, interface: str = "") -> None:
        self.number = number
        self.interface = interface
        self.socket = connection
        self.socket.setblocking(False)
        self.read_bytes = 0
        self.in_order = False
        """Whether TLS said goodbye before the connection ended."""
        self._received = b""
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def has_room(self) -> bool:
        return len(self._unsent) < UNSENT

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def write(self, frame: Frame) -> None:
        self.write_octets(encode(frame))

    def write_octets(self, octets: bytes) -> None:
        self._unsent += octets
        self.flush()

    def flush(self) -> None:
        """Writes what the socket takes. Raises `OSError` when the connection is lost."""
        while self._unsent:
            try:
                written = self.socket.send(self._unsent[:16384])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            del self._unsent[:written]

    def read(self, most: int | None = None) -> list[Frame] | None:
        """The frames that have arrived, or the first ones; None at the end of the connection."""
        ended = False
        while True:
            try:
                octets = self.socket.recv(65536)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                ended = True
                break
            if not octets:
                ended = self.in_order = True
                break
            self.read_bytes += len(octets)
            self._received += octets
        frames = self._frames(most)
        return None if ended and not frames else frames

    def _frames(self, most: int | None) -> list[Frame]:
        frames: list[Frame] = []
        at = 0
        view = self._received
        while at < len(view) and len(frames) != most:
            try:
                frame, taken = decode(view[at : at + 65546])
            except Incomplete:
                break
            at += taken
            if frame is not None:
                frames.append(frame)
        self._received = view[at:]
        return frames

    def rto_micros(self) -> int:
        """TCP's retransmission timeout: `tcpi_rto`, behind eight octets of `struct tcp_info`."""
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 12)
        return int.from_bytes(info[8:12], "little")

    def finish(self) -> None:
        """Writes what waits, and says goodbye in TLS (close_notify)."""
        self.socket.settimeout(FAREWELL)
        try:
            self.flush()
            self.socket.unwrap()
        except OSError:
            # The far end may be gone already, or say more before it answers.
            pass

    def close(self) -> None:
        self.socket.close()


def dial(number: int, invite: Invite, address: tuple[str, int], interface: str) -> Subflow:
    """A subflow to the relay that the invite names, over one interface."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    connection = context.wrap_socket(connect(address, interface), suppress_ragged_eofs=False)
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None or hashlib.sha256(public_key(certificate)).digest() != invite.pin:
        raise Distrusted(f"{address} has another key")
    if connection.selected_alpn_protocol() != ALPN:
        raise Distrusted(f"{address} does not speak {ALPN}")
    return Subflow(number, connection, interface)


def connect(address: tuple[str, int], interface: str) -> socket.socket:
    """A TCP connection over one interface."""
    failure: OSError = OSError(f"{address[0]} has no address")
    for family, kind, protocol, _, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        plain = socket.socket(family, kind, protocol)
        plain.settimeout(PATIENCE)
        try:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
            plain.connect(target)
            return plain
        except OSError as error:
            plain.close()
            failure = error
    raise failure
