//! Frames: only those that the other end wrote, each once, in order.

use belljar_spec::wire::{
    Frame, FrameKey, FrameKind, FrameReader, FrameVersion, FrameWriter, MAX_PAYLOAD, Side,
    WireError,
};
use proptest::prelude::*;

fn key() -> FrameKey {
    FrameKey::new([7; 32])
}

/// The bytes of each frame, separately.
fn written(payloads: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut writer = FrameWriter::new(&key(), Side::Server);
    let frame = |payload: &&[u8]| {
        let mut out = Vec::new();
        writer.write(3, FrameKind::Data, 11, payload, &mut out);
        out
    };
    payloads.iter().map(frame).collect()
}

fn read_all(bytes: &[u8]) -> Result<Vec<Frame>, WireError> {
    let mut reader = FrameReader::new(&key(), Side::Server);
    reader.push(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame()? {
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn the_valid_sequence_is_accepted() {
    let frames = read_all(&written(&[b"one", b"", b"three"]).concat()).unwrap();
    let payloads: Vec<&[u8]> = frames.iter().map(|frame| frame.payload.as_slice()).collect();
    assert_eq!(payloads, [&b"one"[..], b"", b"three"]);
    assert!(frames.iter().all(|frame| (frame.stream, frame.offset) == (3, 11)));
}

#[test]
fn the_mac_of_one_version_is_none_of_the_other() {
    let payload = [9; MAX_PAYLOAD];
    let written = |version| {
        let mut writer = FrameWriter::new(&key(), Side::Server);
        writer.use_version(version);
        let mut out = Vec::new();
        writer.write(3, FrameKind::Data, 11, &payload, &mut out);
        out
    };
    let read = |bytes: &[u8], version| {
        let mut reader = FrameReader::new(&key(), Side::Server);
        reader.use_version(version);
        reader.push(bytes);
        reader.next_frame()
    };
    for version in [FrameVersion::V1, FrameVersion::V2] {
        let other = match version {
            FrameVersion::V1 => FrameVersion::V2,
            FrameVersion::V2 => FrameVersion::V1,
        };
        let bytes = written(version);
        assert_eq!(read(&bytes, version).unwrap().unwrap().payload, payload);
        assert_eq!(read(&bytes, other), Err(WireError::BadMac));
        for at in [0, 4, 8, 12, 20, 28, 44, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            flipped.resize(flipped.len() + MAX_PAYLOAD, 0); // a longer frame is a whole one then
            assert!(read(&flipped, version).is_err(), "{version:?}, byte {at}");
        }
    }
}

#[test]
fn a_burst_is_read_in_larger_pieces_and_keeps_no_buffer() {
    let mut writer = FrameWriter::new(&key(), Side::Server);
    let mut reader = FrameReader::new(&key(), Side::Server);
    let mut bytes = Vec::new();
    for _ in 0..64 {
        writer.write(3, FrameKind::Data, 0, &[1; MAX_PAYLOAD], &mut bytes);
    }
    let (mut pieces, mut frames, mut rest) = (Vec::new(), 0, bytes.as_slice());
    while !rest.is_empty() {
        let read = |buffer: &mut Vec<u8>| {
            let room = (buffer.capacity() - buffer.len()).min(rest.len());
            buffer.extend_from_slice(&rest[..room]);
            Ok::<_, WireError>(room)
        };
        let count = reader.push_with(read).unwrap();
        rest = &rest[count..];
        pieces.push(count);
        while reader.next_frame().unwrap().is_some() {
            frames += 1;
        }
    }
    assert_eq!(frames, 64);
    assert!(pieces[0] <= 2 * MAX_PAYLOAD && *pieces.iter().max().unwrap() >= 8 * MAX_PAYLOAD);
    let capacity = |reader: &mut FrameReader| {
        reader.push_with(|buffer| Ok::<_, WireError>(buffer.capacity())).unwrap()
    };
    assert!(capacity(&mut reader) > 4 * MAX_PAYLOAD, "control: it was larger");
    assert!(capacity(&mut reader) <= 4 * MAX_PAYLOAD, "nothing came, so it is small again");
}

#[test]
fn a_replayed_frame_is_refused() {
    let [a, b] = written(&[b"a", b"b"]).try_into().unwrap();
    assert!(read_all(&[a.clone(), b.clone()].concat()).is_ok());
    let again = read_all(&[a.clone(), a, b].concat());
    assert_eq!(again, Err(WireError::OutOfOrder { expected: 1, found: 0 }));
}

#[test]
fn a_reordered_frame_is_refused() {
    let [a, b, c] = written(&[b"a", b"b", b"c"]).try_into().unwrap();
    assert!(read_all(&[a.clone(), b.clone(), c.clone()].concat()).is_ok());
    let swapped = read_all(&[a, c, b].concat());
    assert_eq!(swapped, Err(WireError::OutOfOrder { expected: 1, found: 2 }));
}

#[test]
fn a_dropped_frame_is_noticed() {
    let [a, b, c] = written(&[b"a", b"b", b"c"]).try_into().unwrap();
    assert!(read_all(&[&a[..], &b, &c].concat()).is_ok());
    let gap = read_all(&[a, c].concat());
    assert_eq!(gap, Err(WireError::OutOfOrder { expected: 1, found: 2 }));
}

#[test]
fn every_flipped_bit_is_refused() {
    let bytes = written(&[b"payload"]).concat();
    assert_eq!(read_all(&bytes).map(|frames| frames.len()), Ok(1));
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        // A longer length only makes the reader wait for bytes that the MAC then refuses.
        flipped.resize(flipped.len() + MAX_PAYLOAD, 0);
        let refused = matches!(read_all(&flipped), Err(WireError::BadMac | WireError::TooLong(_)));
        assert!(refused, "bit {at}");
    }
}

#[test]
fn a_frame_under_another_key_is_refused() {
    let bytes = written(&[b"x"]).concat();
    let mut same = FrameReader::new(&key(), Side::Server);
    same.push(&bytes);
    assert!(same.next_frame().is_ok());
    let mut other = FrameReader::new(&FrameKey::new([8; 32]), Side::Server);
    other.push(&bytes);
    assert_eq!(other.next_frame(), Err(WireError::BadMac));
}

#[test]
fn a_frame_cannot_be_sent_back_to_its_author() {
    let bytes = written(&[b"x"]).concat();
    let mut author = FrameReader::new(&key(), Side::Client);
    author.push(&bytes);
    assert_eq!(author.next_frame(), Err(WireError::BadMac));
    assert!(read_all(&bytes).is_ok(), "the right reader takes it");
}

#[test]
fn the_numbering_goes_on_under_a_new_key() {
    let fresh = FrameKey::new([9; 32]);
    let mut writer = FrameWriter::new(&key(), Side::Server);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    writer.write(0, FrameKind::MessageEnd, 0, b"1", &mut first);
    writer.rekey(&fresh);
    writer.write(0, FrameKind::MessageEnd, 0, b"2", &mut second);

    let mut reader = FrameReader::new(&key(), Side::Server);
    reader.push(&first);
    reader.push(&second);
    assert!(reader.next_frame().unwrap().is_some());
    reader.rekey(&fresh);
    assert_eq!(reader.next_frame().unwrap().unwrap().payload, b"2");

    let mut late = FrameReader::new(&key(), Side::Server);
    late.push(&[first, second].concat());
    assert!(late.next_frame().is_ok());
    assert_eq!(late.next_frame(), Err(WireError::BadMac), "without the new key");
}

fn kind() -> impl Strategy<Value = FrameKind> {
    prop::sample::select(vec![
        FrameKind::MessagePart,
        FrameKind::MessageEnd,
        FrameKind::Data,
        FrameKind::End,
        FrameKind::Window,
        FrameKind::Reset,
    ])
}

fn frame() -> impl Strategy<Value = Frame> {
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    (any::<u32>(), kind(), any::<u64>(), payload)
        .prop_map(|(stream, kind, offset, payload)| Frame { stream, kind, offset, payload })
}

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    let mut writer = FrameWriter::new(&key(), Side::Server);
    let mut bytes = Vec::new();
    for frame in frames {
        writer.write(frame.stream, frame.kind, frame.offset, &frame.payload, &mut bytes);
    }
    bytes
}

proptest! {
    #[test]
    fn frames_arrive_whole_however_they_are_cut(
        frames in prop::collection::vec(frame(), 0..8),
        cuts in prop::collection::vec(1_usize..200, 1..50),
    ) {
        let bytes = bytes_of(&frames);
        let mut reader = FrameReader::new(&key(), Side::Server);
        let mut read = Vec::new();
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            reader.push(chunk);
            while let Some(frame) = reader.next_frame().unwrap() {
                read.push(frame);
            }
            rest = after;
        }
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn random_bytes_are_refused_and_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let read = read_all(&bytes);
        prop_assert!(read.is_err() || read.unwrap().is_empty());
    }

    #[test]
    fn a_changed_stream_yields_a_prefix_of_the_true_one(
        frames in prop::collection::vec(frame(), 1..6),
        at: prop::sample::Index,
        change in prop::collection::vec(any::<u8>(), 1..9),
    ) {
        let mut bytes = bytes_of(&frames);
        let at = at.index(bytes.len());
        let end = (at + change.len()).min(bytes.len());
        bytes.splice(at..end, change);
        let mut reader = FrameReader::new(&key(), Side::Server);
        reader.push(&bytes);
        let mut read = Vec::new();
        while let Ok(Some(frame)) = reader.next_frame() {
            read.push(frame);
        }
        prop_assert!(read.len() <= frames.len());
        prop_assert_eq!(&read[..], &frames[..read.len()]);
    }
}
