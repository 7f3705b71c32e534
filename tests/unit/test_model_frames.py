from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model import frames
from kerneltui.model.errors import RecordError
from kerneltui.model.frames import FrameReader, encode_frame

FRAMES = st.lists(
    st.builds(
        lambda kind, extra: {**extra, "frame": kind},
        st.sampled_from(["event", "progress", "reply"]),
        st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=20), max_size=3),
    ),
    max_size=6,
)


@given(FRAMES, st.lists(st.integers(0, 400)))
def test_frames_come_back_however_the_bytes_are_cut(sent: list[dict], cuts: list[int]):
    data = b"".join(map(encode_frame, sent))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = FrameReader()
    received = [
        frame for first, last in pairwise(places) for frame in reader.feed(data[first:last])
    ]
    assert received == sent


@given(FRAMES)
def test_frames_come_back_byte_by_byte(sent: list[dict]):
    reader = FrameReader()
    received = [
        frame
        for frame_sent in sent
        for byte in encode_frame(frame_sent)
        for frame in reader.feed(bytes([byte]))
    ]
    assert received == sent


def test_a_frame_is_there_with_its_last_byte_and_not_before():
    data = encode_frame({"frame": "hello"})
    reader = FrameReader()
    assert list(reader.feed(data[:-1])) == []
    assert list(reader.feed(data[-1:])) == [{"frame": "hello"}]


def test_frames_that_were_not_taken_come_with_the_next_bytes():
    one, two, three = ({"frame": "event", "position": number} for number in (1, 2, 3))
    reader = FrameReader()
    reader.feed(encode_frame(one))
    assert next(reader.feed(encode_frame(two))) == one
    assert list(reader.feed(encode_frame(three))) == [two, three]


@pytest.mark.parametrize("body", [b"[]", b"1", b"{}", b'{"kind":"event"}', b"", b"{", b"\xff"])
def test_what_is_no_frame_is_refused(body: bytes):
    with pytest.raises(RecordError):
        list(FrameReader().feed(struct.pack("!I", len(body)) + body))


def test_a_length_over_the_limit_is_refused_before_its_bytes_come(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RecordError, match="over the limit"):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))
    monkeypatch.setattr(frames, "LARGEST_FRAME", 100)
    with pytest.raises(RecordError, match="over the limit of 100"):
        encode_frame({"frame": "event", "text": "x" * 100})


@given(st.binary(max_size=60))
def test_any_bytes_are_frames_or_a_record_error(data: bytes):
    try:
        found = list(FrameReader().feed(data))
    except RecordError:
        return
    assert all("frame" in frame for frame in found)
