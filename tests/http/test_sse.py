"""Reading server-sent events: as the standard says, wherever the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcall.http.sse import Event, EventReader, EventTooLarge

MARK = b"\xef\xbb\xbf"


def read(data: bytes, *cuts: int, limit: int = 2**24) -> list[Event]:
    """The events of a stream that comes in pieces, cut at these places."""
    reader = EventReader(limit)
    places = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    return [event for a, b in itertools.pairwise(places) for event in reader.feed(data[a:b])]


def by_the_book(data: bytes) -> tuple[list[Event], str, int | None]:
    """The events of a whole stream, the last id and the retry time, step by step as the standard has it.

    Beyond the standard, a time of 16 digits and more is ignored.
    """
    text = data.removeprefix(MARK)
    lines: list[bytes] = []
    line, place = b"", 0
    while place < len(text):
        byte = text[place : place + 1]
        place += 1
        if byte not in (b"\r", b"\n"):
            line += byte
            continue
        if byte == b"\r" and text[place : place + 1] == b"\n":
            place += 1
        lines.append(line)
        line = b""
    events: list[Event] = []
    buffer, kind, id_buffer, last_id, retry = b"", b"", "", "", None
    for line in lines:
        if line == b"":
            last_id = id_buffer
            if buffer:
                events.append(Event(buffer[:-1], kind.decode(errors="replace") or "message", last_id))
            buffer, kind = b"", b""
            continue
        if line[:1] == b":":
            continue
        name, value = line.split(b":", 1) if b":" in line else (line, b"")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"event":
            kind = value
        elif name == b"data":
            buffer += value + b"\n"
        elif name == b"id" and b"\0" not in value:
            id_buffer = value.decode(errors="replace")
        elif name == b"retry" and 0 < len(value) < 16 and all(digit in b"0123456789" for digit in value):
            retry = int(value)
    return events, last_id, retry


def test_an_event_has_its_data_its_kind_and_the_last_id() -> None:
    stream = b'id: 7\nevent: note\ndata: {"a": 1}\n\ndata: next\n\n'
    assert read(stream) == [Event(b'{"a": 1}', "note", "7"), Event(b"next", "message", "7")]


def test_several_data_lines_are_joined_and_an_empty_one_counts() -> None:
    assert read(b"data: a\ndata:b\ndata\ndata:  c\n\n") == [Event(b"a\nb\n\n c")]
    assert read(b"id: 1\ndata:\n\n") == [Event(b"", "message", "1")]


def test_comments_unknown_fields_and_events_without_data_bring_nothing() -> None:
    assert read(b": hello\n\nfoo: bar\n\nevent: x\n\n:\n\n") == []


def test_what_has_no_empty_line_after_it_is_no_event() -> None:
    assert read(b"data: a\n\ndata: b\n") == [Event(b"a")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_any_line_end_does_and_the_event_comes_as_soon_as_it_is_whole(end: bytes) -> None:
    reader = EventReader()
    assert reader.feed(b"data: a" + end) == []
    assert reader.feed(end[:1]) == [Event(b"a")]
    assert reader.feed(end[1:] + b"data: b" + end + end) == [Event(b"b")]


def test_a_byte_order_mark_is_dropped_at_the_beginning_only() -> None:
    stream = MARK + b"data: a\n\n" + MARK + b"data: b\n\ndata: c\n\n"
    for cut in range(6):
        assert read(stream, cut) == [Event(b"a"), Event(b"c")]
    assert read(MARK + MARK + b"data: a\n\n") == []


def test_an_id_counts_even_if_its_event_has_no_data_but_not_before_the_event_ends() -> None:
    reader = EventReader()
    reader.feed(b"id: 1\n\n")
    assert reader.id == "1"
    reader.feed(b"id: 2\n")
    assert reader.id == "1"
    reader.feed(b"\nid\n\n")
    assert reader.id == ""


def test_an_id_with_a_nul_is_ignored() -> None:
    assert read(b"id: 1\nid: 2\x003\ndata: a\n\n") == [Event(b"a", "message", "1")]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (b"1500", 1500),
        (b"0", 0),
        (b"-1", None),
        (b"1.5", None),
        (b"", None),
        (b"\xd9\xa1", None),
        (b"9" * 5000, None),
    ],
)
def test_only_digits_are_a_time_to_wait(said: bytes, heard: int | None) -> None:
    reader = EventReader()
    reader.feed(b"retry: " + said + b"\n")
    assert reader.retry == heard


def test_bytes_that_are_no_text_are_replaced_in_names_and_kept_in_data() -> None:
    assert read(b"event: \xff\ndata: \xff\n\n") == [Event(b"\xff", "�")]


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"x" * 200, b"data: 1234567890\n" * 20, b":" + b"x" * 200, b"data: " + b"x" * 200 + b"\n\n"],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_event_over_the_limit_is_an_error_after_the_events_before_it(stream: bytes, step: int) -> None:
    reader = EventReader(limit=100)
    whole = b"data: a\n\n" + stream
    events: list[Event] = []
    with pytest.raises(EventTooLarge, match="100 bytes"):
        for place in range(0, len(whole) + step, step):
            events += reader.feed(whole[place : place + step])
    assert events == [Event(b"a")]
    with pytest.raises(EventTooLarge):
        reader.feed(b"\n\ndata: b\n\n")


@pytest.mark.parametrize("step", [1, 5, 13, 20_000])
def test_the_limit_is_for_one_event_not_for_the_stream(step: int) -> None:
    stream = b"data: 0123456789\n\n" * 1000
    assert len(read(stream, *range(0, len(stream), step), limit=16)) == 1000
    with pytest.raises(EventTooLarge):
        read(stream, *range(0, len(stream), step), limit=15)


def test_a_long_line_in_many_pieces_is_not_copied_for_each() -> None:
    reader = EventReader()
    pieces = 200_000  # copying what has come for each of them would take minutes
    for _ in range(pieces):
        assert reader.feed(b"data: xyz ") == []
    assert len(reader.feed(b"\n\n")[0].data) == pieces * 10 - 6


words = st.sampled_from(
    [
        b"data",
        b"data:",
        b"data: ",
        b"event: ",
        b"id:",
        b"id: ",
        b"retry: ",
        b":",
        b": ",
        b" ",
        b"a",
        b"{}",
        b"12",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b"\x00",
        b"\xff",
        b"\xc2",
        b"\x85",
        b"\x0b",
        b"\x1c",
        MARK,
        MARK[:1],
    ]
)
streams = st.lists(words, max_size=40).map(b"".join)


@given(streams, st.lists(st.integers(0, 120), max_size=12))
def test_the_events_are_those_of_the_standard_wherever_the_bytes_are_cut(
    stream: bytes, cuts: list[int]
) -> None:
    expected, last_id, retry = by_the_book(stream)
    assert read(stream, *cuts) == expected
    reader = EventReader()
    assert [event for byte in stream for event in reader.feed(bytes([byte]))] == expected
    assert (reader.id, reader.retry) == (last_id, retry)


@given(st.lists(st.tuples(st.binary(max_size=20), st.sampled_from(["", "note"]))), st.integers(1, 9))
def test_what_is_written_as_events_is_read_as_the_same(messages: list[tuple[bytes, str]], step: int) -> None:
    messages = [(data.replace(b"\r", b"").replace(b"\0", b""), event) for data, event in messages]
    stream = b"".join(
        (b"event: %b\r\n" % event.encode() if event else b"")
        + b"".join(b"data: %b\r\n" % line for line in data.split(b"\n"))
        + b"\r\n"
        for data, event in messages
    )
    assert read(stream, *range(0, len(stream), step)) == [
        Event(data, event or "message") for data, event in messages
    ]
