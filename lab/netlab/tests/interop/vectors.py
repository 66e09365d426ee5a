"""Holds wire.py to the test vectors of docs/protocol.md: `python3 vectors.py docs/protocol.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from wire import Frame, Incomplete, Refused, Value, decode, encode

OCTETS = {"key", "token"}
"""Fields given in hex."""

WORDS = {"kind", "standing", "class", "scheduler", "result", "name", "ipv4", "ipv6", "address", "text"}
"""Fields given as they are; others are numbers, or yes and no."""


def block(document: str, language: str) -> list[str]:
    """The lines of the document's only fenced block of this language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{len(found)} blocks of {language}"
    lines: list[str] = found[0].splitlines()
    assert lines, f"nothing in the block of {language}"
    return lines


def parse(text: str) -> Frame:
    """The frame that a line describes."""
    name, *items = text.split(" ")
    fields: dict[str, Value] = {}
    for item in items:
        key, _, value = item.partition("=")
        fields[key] = parse_value(name, key, value)
    return Frame(name, fields)


def parse_value(name: str, key: str, value: str) -> Value:
    if key in OCTETS or (name, key) == ("DATA", "bytes"):
        return bytes.fromhex(value)
    if key in WORDS or (name, key) == ("RESET", "answer"):
        return value
    if value in ("yes", "no"):
        return value == "yes"
    return int(value)


def whole(octets: bytes) -> Frame | None:
    """The frame that these octets are."""
    frame, taken = decode(octets)
    assert taken == len(octets), f"{taken} of {len(octets)} octets"
    return frame


def main() -> None:
    document = Path(sys.argv[1]).read_text()
    vectors = block(document, "vectors")
    for line in vectors:
        octets, text = line.split(" ", 1)
        frame = parse(text)
        assert encode(frame).hex() == octets, f"{encode(frame).hex()} for {line}"
        assert whole(bytes.fromhex(octets)) == frame, f"{whole(bytes.fromhex(octets))} for {line}"
        for end in range(len(octets) // 2):
            try:
                decode(bytes.fromhex(octets)[:end])
            except Incomplete:
                continue
            raise AssertionError(f"{end} octets pass for all of {line}")
    refused = block(document, "refused")
    for line in refused:
        octets, why = line.split(" ")
        try:
            decode(bytes.fromhex(octets))
        except Refused as error:
            assert error.why == why, f"{error} for {line}"
        else:
            raise AssertionError(f"{octets} is accepted")
    skipped = block(document, "skipped")
    for octets in skipped:
        assert whole(bytes.fromhex(octets)) is None, octets
    print(f"{len(vectors)} vectors, {len(refused)} refused, {len(skipped)} skipped")


if __name__ == "__main__":
    main()
