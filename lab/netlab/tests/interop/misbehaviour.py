"""What docs/protocol.md calls a violation, what it costs, and what must not cost anything."""

from __future__ import annotations

import select
import time
import traceback
from dataclasses import dataclass
from typing import Callable

from client import Session
from endpoint import FIRST_SESSION_WINDOW, SessionOver
from stream import FIRST_STREAM_WINDOW, Stream
from subflow import Distrusted, Invite, Subflow, dial
from wire import MAX_BODY, Fields, Frame, encode, raw, write_varint

NEVER_OPENED = 7
HUGE = 2**40


@dataclass(frozen=True)
class World:
    """Where a case takes place."""

    invite: Invite
    other_invite: Invite
    host: str
    port: int
    interfaces: list[str]

    def session(self) -> Session:
        """One with a subflow on each interface."""
        session = Session(self.invite)
        session.begin(self.interfaces[0])
        for interface in self.interfaces[1:]:
            session.join(interface)
        return session

    def stream(self, session: Session) -> Stream:
        """One that is connected."""
        stream = session.open(self.host, self.port)
        session.run(lambda: stream.result is not None)
        assert stream.result == "connected", stream.result
        return stream

    def knock(self, octets: bytes, name: str = "") -> Frame:
        """The relay's first frame (of this name) after what begins a subflow; behind CLOSE there is nothing."""
        subflow = dial(0, self.invite, self.invite.address, self.interfaces[0])
        subflow.write_octets(octets)
        frames = wait_for_frames(subflow)
        while name not in ("", *(frame.name for frame in frames)):
            frames += wait_for_frames(subflow)
        if frames[-1].name == "CLOSE":
            assert ends_in_order(subflow), "no close_notify"
        subflow.close()
        return next(frame for frame in frames if name in ("", frame.name))

    def open_frame(self, number: int) -> Frame:
        """OPEN of a stream that would be connected."""
        fields: Fields = {"class": "auto", "scheduler": "min_rtt", "name": self.host, "port": self.port}
        return Frame("OPEN", {"stream": number, **fields})

    def begin(self, session: Session, number: int = 0, token: bytes | None = None) -> bytes:
        """A HELLO that begins a session."""
        return self._hello(session, number, {"kind": "init", "token": token or self.invite.token})

    def hello(self, session: Session, number: int) -> bytes:
        """A HELLO that joins a session."""
        return self._hello(session, number, {"kind": "join"})

    def _hello(self, session: Session, number: int, kind: Fields) -> bytes:
        fields: Fields = {"version": 1, "key": session.key, "subflow": number, "path": 1, "backup": False}
        return encode(Frame("HELLO", {**fields, **kind}))


def wait_for_frames(subflow: Subflow) -> list[Frame]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        select.select([subflow], [], [], 1)
        frames = subflow.read()
        if frames is None:
            raise AssertionError("it ended without a word")
        if frames:
            return frames
    raise AssertionError("no answer")


def ends_in_order(subflow: Subflow) -> bool:
    """Whether TLS says goodbye at the end."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and subflow.read() is not None:
        select.select([subflow], [], [], 1)
    return subflow.in_order


def first(session: Session) -> Subflow:
    return session.subflows[min(session.subflows)]


def data(stream: int, dsn: int, octets: bytes, fin: bool = False) -> Frame:
    return Frame("DATA", {"stream": stream, "dsn": dsn, "idle": False, "fin": fin, "bytes": octets})


def reset(stream: int, code: int = 0, end: int = 0) -> Frame:
    return Frame("RESET", {"stream": stream, "code": code, "end": end, "answer": "no"})


def is_alive(session: Session, subflow: Subflow) -> None:
    """Fails unless the relay has read all that was said on the subflow and answers."""
    before = session.pongs
    session.ping(subflow)
    session.run(lambda: session.pongs > before, 20)


CASES: list[Callable[[World], None]] = []


def costs_the_session(code: int) -> Callable[[Callable[[World, Session], None]], Callable[[World], None]]:
    """The session ends with this code on all of its subflows, and cannot be joined again."""

    def decorate(misbehave: Callable[[World, Session], None]) -> Callable[[World], None]:
        def case(world: World) -> None:
            session = world.session()
            subflows = list(session.subflows.values())
            ended = None
            try:
                misbehave(world, session)
                session.run(lambda: False, 20)
            except SessionOver as over:
                ended = over.code
            assert ended == code, f"{ended} is not {code:#x}"
            assert any(ends_in_order(subflow) for subflow in subflows), "no close_notify"
            answer = world.knock(world.hello(session, 9))
            assert answer.fields.get("code") == 0x111, f"the session is there: {answer}"

        return register(case, misbehave)

    return decorate


def costs_the_subflow(code: int) -> Callable[[Callable[[World, Session], None]], Callable[[World], None]]:
    """The first subflow ends with this code, and the other one goes on."""

    def decorate(misbehave: Callable[[World, Session], None]) -> Callable[[World], None]:
        def case(world: World) -> None:
            session = world.session()
            stream = world.stream(session)
            guilty = first(session)
            misbehave(world, session)
            session.run(lambda: guilty.number not in session.subflows, 20)
            assert session.closes == {guilty.number: code}, f"{session.closes} is not {code:#x}"
            is_alive(session, first(session))
            assert stream.number in session.streams, "the stream is gone"
            session.close()

        return register(case, misbehave)

    return decorate


def costs_nothing(behave: Callable[[World, Session], None]) -> Callable[[World], None]:
    """All subflows go on."""

    def case(world: World) -> None:
        session = world.session()
        behave(world, session)
        assert len(session.subflows) == len(world.interfaces), session.closes
        for subflow in session.subflows.values():
            is_alive(session, subflow)
        session.close()

    return register(case, behave)


def register(case: Callable[[World], None], named: Callable[..., None]) -> Callable[[World], None]:
    case.__name__ = named.__name__
    CASES.append(case)
    return case


@costs_the_subflow(0x02)
def an_unknown_type_below_0x40(world: World, session: Session) -> None:
    first(session).write_octets(raw(0x3F, b""))


@costs_the_subflow(0x02)
def a_length_above_the_limit(world: World, session: Session) -> None:
    # It is found before the body, which never comes.
    first(session).write_octets(bytes([0x12]) + write_varint(MAX_BODY + 1))


@costs_the_subflow(0x02)
def a_body_that_ends_early(world: World, session: Session) -> None:
    first(session).write_octets(raw(0x03, bytes(7)))


@costs_the_subflow(0x02)
def a_value_that_is_not_listed(world: World, session: Session) -> None:
    first(session).write_octets(raw(0x05, bytes([1, 4])))


@costs_the_subflow(0x03)
def a_second_hello(world: World, session: Session) -> None:
    first(session).write_octets(world.hello(session, 9))


@costs_the_subflow(0x03)
def a_frame_of_the_relays(world: World, session: Session) -> None:
    first(session).write(Frame("DRAIN"))


@costs_the_subflow(0x03)
def a_pong_that_was_not_asked_for(world: World, session: Session) -> None:
    first(session).write(Frame("PONG", {"value": 1}))


@costs_the_subflow(0x03)
def gone_about_the_subflow_that_says_it(world: World, session: Session) -> None:
    first(session).write(session.priority(first(session).number, "gone"))


@costs_the_session(0x104)
def data_of_a_stream_never_opened(world: World, session: Session) -> None:
    first(session).write(data(NEVER_OPENED, 0, b"x"))


@costs_the_session(0x104)
def a_number_too_far_ahead(world: World, session: Session) -> None:
    first(session).write(world.open_frame(4096))


@costs_nothing
def a_number_as_far_ahead_as_may_be(world: World, session: Session) -> None:
    session.next_stream = 4096
    first(session).write(world.open_frame(4095))


@costs_the_session(0x105)
def data_beyond_the_streams_window(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, stream.window, b"x"))


@costs_the_session(0x105)
def too_many_gaps(world: World, session: Session) -> None:
    stream = world.stream(session)
    for run in range(4097):
        first(session).write(data(stream.number, 2 * run + 1, b"x"))


@costs_nothing
def as_many_gaps_as_may_be(world: World, session: Session) -> None:
    stream = world.stream(session)
    for run in range(4096):
        first(session).write(data(stream.number, 2 * run + 1, b"x"))


@costs_the_session(0x106)
def an_acknowledgment_of_what_was_not_sent(world: World, session: Session) -> None:
    stream = world.stream(session)
    fields: Fields = {"stream": stream.number, "data_ack": HUGE, "window": HUGE}
    first(session).write(Frame("ACK", fields))


@costs_the_session(0x106)
def data_behind_the_end(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, 0, b"four", fin=True))
    first(session).write(data(stream.number, 4, b"x"))


@costs_the_session(0x106)
def another_end(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, 0, b"four", fin=True))
    first(session).write(data(stream.number, 3, b"", fin=True))


@costs_the_session(0x106)
def an_end_before_what_arrived(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, 4, b"four"))
    first(session).write(data(stream.number, 0, b"two", fin=True))


@costs_nothing
def types_that_are_skipped(world: World, session: Session) -> None:
    for type_ in (0x40, 0x4F, 0x50, 0xFF):
        first(session).write_octets(raw(type_, bytes(MAX_BODY)))


@costs_nothing
def varints_that_are_longer_than_need_be(world: World, session: Session) -> None:
    before = session.pongs
    for length in (b"\x40\x08", b"\x80\x00\x00\x08", b"\xc0" + bytes(6) + b"\x08"):
        session.expect_pongs(first(session), [0])
        first(session).write_octets(b"\x03" + length + bytes(8))
        session.run(lambda: session.pongs > before, 20)
        before = session.pongs


@costs_nothing
def a_number_opened_again(world: World, session: Session) -> None:
    stream = world.stream(session)
    elsewhere = Frame("OPEN", {**stream.open_frame.fields, "name": "nowhere.example"})
    for subflow in session.subflows.values():
        subflow.write(stream.open_frame)
        subflow.write(elsewhere)
        is_alive(session, subflow)
    assert stream.result == "connected" and stream.number in session.streams, "the stream changed"


@costs_nothing
def a_number_opened_again_when_its_stream_is_over(world: World, session: Session) -> None:
    stream = world.stream(session)
    session.reset(stream)
    session.run(lambda: stream.is_over)
    first(session).write(stream.open_frame)
    first(session).write(reset(stream.number))
    first(session).write(data(stream.number, 0, b"late"))


@costs_nothing
def a_reset_of_a_number_not_seen(world: World, session: Session) -> None:
    # It is answered, and an OPEN that it overtook opens nothing.
    stream = session.reserve(world.host, world.port)
    session.reset(stream)
    session.run(lambda: stream.is_over)
    first(session).write(stream.open_frame)


@costs_the_session(0x105)
def a_reset_beyond_the_window_of_a_number_not_seen(world: World, session: Session) -> None:
    first(session).write(reset(0, end=FIRST_STREAM_WINDOW + 1))


@costs_nothing
def data_for_a_stream_that_is_over(world: World, session: Session) -> None:
    stream = world.stream(session)
    session.reset(stream)
    session.run(lambda: stream.is_over)
    session.answers.clear()
    for subflow in session.subflows.values():
        subflow.write(data(stream.number, 0, b"late"))
        session.run(lambda: session.answers.get(stream.number) == subflow.number, 20)
    # Nothing answers these.
    fields: Fields = {"stream": stream.number, "data_ack": HUGE, "window": HUGE}
    first(session).write(Frame("ACK", fields))
    first(session).write(Frame("RESET", {**reset(stream.number).fields, "answer": "yes"}))


@costs_nothing
def an_end_where_the_window_ends(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, stream.window, b"", fin=True))


@costs_nothing
def data_that_is_empty(world: World, session: Session) -> None:
    first(session).write(data(world.stream(session).number, 0, b""))


@costs_the_session(0x105)
def a_reset_beyond_the_window(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(reset(stream.number, end=stream.window + 1))


@costs_the_session(0x106)
def a_reset_before_what_arrived(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, 4, b"four"))
    first(session).write(reset(stream.number, end=7))


@costs_the_session(0x106)
def a_reset_behind_the_end(world: World, session: Session) -> None:
    stream = world.stream(session)
    first(session).write(data(stream.number, 4, b"four", fin=True))
    first(session).write(reset(stream.number, end=9))


@costs_the_session(0x104)
def an_acknowledgment_about_a_stream_never_opened(world: World, session: Session) -> None:
    first(session).write(Frame("ACK", {"stream": NEVER_OPENED, "data_ack": 0, "window": HUGE}))


@costs_nothing
def one_stream_too_many(world: World, session: Session) -> None:
    assert session.greeting is not None
    most = session.greeting.number("max_streams")
    streams = [session.open(world.host, world.port) for _ in range(most + 1)]
    session.run(lambda: all(stream.result for stream in streams) and streams[-1].is_over)
    assert [stream.result for stream in streams] == ["connected"] * most + ["over_limit"]
    # One that ends makes room.
    session.reset(streams[0])
    session.run(lambda: streams[0].is_over)
    world.stream(session)


@costs_nothing
def destinations_that_are_not_reached(world: World, session: Session) -> None:
    refusals = [("127.0.0.1", 80, "forbidden"), ("::1", 80, "forbidden"), (world.host, 9, "refused")]
    for host, port, result in [*refusals, ("nowhere.example", 80, "no_such_host")]:
        stream = session.open(host, port)
        stream.send(b"sent before it is known")
        session.run(lambda: stream.is_over)
        assert (stream.result, stream.reset_code) == (result, 1), f"{host}: {stream.result}, {stream.reset_code}"


@costs_the_subflow(0x03)
def more_questions_than_answers(world: World, session: Session) -> None:
    first(session).write_octets(encode(Frame("PING", {"value": 0})) * 400)


@costs_nothing
def as_many_questions_as_may_be(world: World, session: Session) -> None:
    values = range(256)
    session.expect_pongs(first(session), values)
    first(session).write_octets(b"".join(encode(Frame("PING", {"value": value})) for value in values))
    session.run(lambda: session.pongs == len(values), 20)


@costs_nothing
def numbers_of_subflows_that_are_not_known(world: World, session: Session) -> None:
    for standing in ("normal", "backup", "suspect", "gone"):
        first(session).write(session.priority(77, standing))
    first(session).write(Frame("PIPE_STATUS", {"subflow": 77, "buffered": 1, "rate": 1}))


@costs_nothing
def a_question_about_the_timeout(world: World, session: Session) -> None:
    first(session).write(Frame("RTO_REQUEST"))
    session.run(lambda: session.far_rto is not None, 20)


def register_hello(case: Callable[[World], None]) -> Callable[[World], None]:
    return register(case, case)


@register_hello
def a_session_that_is_not_there(world: World) -> None:
    refused_with(world.knock(world.hello(Session(world.invite), 1)), 0x111)


@register_hello
def another_version(world: World) -> None:
    # Fields of that version follow, which mean nothing here.
    refused_with(world.knock(raw(0x01, b"\x02\xff\xff")), 0x01)


@register_hello
def no_hello(world: World) -> None:
    refused_with(world.knock(encode(Frame("PING", {"value": 1}))), 0x01)


@register_hello
def a_hello_that_is_malformed(world: World) -> None:
    refused_with(world.knock(raw(0x01, b"\x01\xff\xff")), 0x01)


@register_hello
def a_token_of_another_relay(world: World) -> None:
    forged = world.invite.token[:-1] + bytes([world.invite.token[-1] ^ 1])
    refused_with(world.knock(world.begin(Session(world.invite), token=forged)), 0x110)


@register_hello
def a_session_begun_twice(world: World) -> None:
    session = world.session()
    answer = world.knock(world.begin(session, 8))
    assert answer.name == "HELLO_OK", answer
    refused_with(world.knock(world.begin(session, 9, world.other_invite.token)), 0x110)
    is_alive(session, first(session))
    session.close()


@register_hello
def a_number_of_a_subflow_used_before(world: World) -> None:
    session = world.session()
    refused_with(world.knock(world.hello(session, first(session).number)), 0x08)
    is_alive(session, first(session))
    session.close()


@register_hello
def too_many_subflows(world: World) -> None:
    session = world.session()
    assert session.greeting is not None
    while len(session.subflows) < session.greeting.number("max_subflows"):
        session.join(world.interfaces[0])
    refused_with(world.knock(world.hello(session, session.next_subflow)), 0x08)
    is_alive(session, first(session))
    session.close()


@register_hello
def data_beyond_the_sessions_first_window(world: World) -> None:
    # All of it comes with HELLO, before the relay could grant more. One octet in the last place of a stream's
    # window counts as all of it.
    octets = world.begin(Session(world.invite))
    for number in range(FIRST_SESSION_WINDOW // FIRST_STREAM_WINDOW + 1):
        octets += encode(world.open_frame(number))
        octets += encode(data(number, FIRST_STREAM_WINDOW - 1, b"x"))
    refused_with(world.knock(octets, "CLOSE"), 0x105)


@register_hello
def refusals_that_are_not_answered(world: World) -> None:
    session = world.session()
    assert session.greeting is not None
    octets = world.begin(Session(world.invite))
    for number in range(session.greeting.number("max_streams") + 1024 + 1):
        octets += encode(world.open_frame(number))
    refused_with(world.knock(octets, "CLOSE"), 0x104)
    session.close()


@register_hello
def a_relay_with_another_key(world: World) -> None:
    # No token goes to it.
    try:
        Session(Invite(world.invite.address, bytes(32), world.invite.token)).begin(world.interfaces[0])
    except Distrusted:
        return
    raise AssertionError("the key of another relay is trusted")


@register_hello
def codes_of_close(world: World) -> None:
    # Unknown ones count as 0 of their kind.
    for code, is_over in ((0x00, False), (0xFF, False), (0x100, True), (0x1FF, True)):
        session = world.session()
        leaving, other = session.subflows.values()
        session.leave(leaving, code)
        if is_over:
            assert ends_in_order(other), "no close_notify"
            refused_with(world.knock(world.hello(session, 9)), 0x111)
        else:
            is_alive(session, other)
            session.close()


def refused_with(answer: Frame, code: int) -> None:
    assert answer.name == "CLOSE" and answer["code"] == code, f"{answer} is not {code:#x}"


def misbehave(invite: Invite, other_invite: str, host: str, port: str, *interfaces: str) -> None:
    """All cases, each in a session of its own."""
    world = World(invite, Invite.parse(other_invite), host, int(port), list(interfaces))
    failed = []
    for case in CASES:
        try:
            case(world)
        except Exception:
            failed.append(f"{case.__name__}: {traceback.format_exc(limit=-3)}")
    assert not failed, "\n".join([f"{len(failed)} of {len(CASES)} failed", *failed])
    print(f"{len(CASES)} cases")
