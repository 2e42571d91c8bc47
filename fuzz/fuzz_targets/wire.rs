//! The launcher's side of the channel, with any bytes from inside: no panic, no more than its
//! budget. Run: `cargo +nightly fuzz run wire`.
#![no_main]

use belljar_spec::wire::mux::{MAX_MESSAGE, WIDE_WINDOW, parse};
use belljar_spec::wire::{
    Arrival, FrameKey, FrameKind, FrameVersion, FrameWriter, FromInit, MAX_PAYLOAD, Mux, Side,
    ToInit,
};
use libfuzzer_sys::fuzz_target;

const KINDS: [FrameKind; 6] = [
    FrameKind::MessagePart,
    FrameKind::MessageEnd,
    FrameKind::Data,
    FrameKind::End,
    FrameKind::Window,
    FrameKind::Reset,
];

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    if mode % 2 == 0 {
        raw(rest);
    } else {
        marked(rest);
    }
});

/// Bytes as they come.
fn raw(bytes: &[u8]) {
    let mut mux = mux();
    for chunk in bytes.chunks(97) {
        mux.push(chunk);
        if !drain(&mut mux) {
            return;
        }
    }
    let _ = parse::<ToInit>(bytes);
    let _ = parse::<FromInit>(bytes);
}

/// Frames under the right key, whose content is the fuzzer's: the mark alone must not be trusted.
fn marked(mut bytes: &[u8]) {
    let mut mux = mux();
    let mut writer = FrameWriter::new(&FrameKey::OPENING, Side::Server);
    writer.use_version(FrameVersion::V2);
    while let [kind, stream, offset_low, offset_high, length, rest @ ..] = bytes {
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        let offset = u64::from(u16::from_le_bytes([*offset_low, *offset_high]));
        let length = (usize::from(*length) * 64).min(MAX_PAYLOAD).min(rest.len());
        let (payload, after) = rest.split_at(length);
        let mut frame = Vec::new();
        writer.write(u32::from(stream % 4), kind, offset, payload, &mut frame);
        mux.push(&frame);
        if !drain(&mut mux) {
            return;
        }
        bytes = after;
    }
}

fn mux() -> Mux {
    let mut mux = Mux::new(Side::Client);
    mux.use_version(FrameVersion::V2);
    for stream in 1..3 {
        let _ = mux.open(stream);
    }
    mux
}

/// Whether the channel is still good.
fn drain(mux: &mut Mux) -> bool {
    loop {
        match mux.next_arrival() {
            Ok(Some(Arrival::Message(message))) => {
                assert!(message.len() <= MAX_MESSAGE);
                let _ = parse::<FromInit>(&message);
            }
            Ok(Some(Arrival::Data { stream, bytes })) => mux.consumed(stream, bytes.len()),
            Ok(Some(Arrival::End { stream })) => mux.end(stream),
            Ok(Some(Arrival::Reset { .. })) => {}
            Ok(None) => break,
            Err(_) => return false,
        }
    }
    assert!(mux.room(1) as u64 <= WIDE_WINDOW);
    let _ = mux.send_data(1, b"some bytes");
    let waiting = mux.outgoing().len();
    mux.sent(waiting);
    true
}
