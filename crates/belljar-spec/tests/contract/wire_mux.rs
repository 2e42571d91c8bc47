//! Streams and messages over frames: whole, bounded, and safe from a hostile other end.

use belljar_spec::wire::mux::{
    DATA_AHEAD, MAX_MESSAGE, MAX_STREAMS, WIDE_BUDGET, WIDE_WINDOW, WINDOW, parse,
};
use belljar_spec::wire::{
    Arrival, Flow, FrameKey, FrameKind, FrameVersion, FrameWriter, MAX_PAYLOAD, Mux, Side, ToInit,
    WireError,
};
use proptest::prelude::*;

/// Moves what one end has to send to the other, in one piece.
fn carry(from: &mut Mux, to: &mut Mux) {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    to.push(&bytes);
}

fn arrivals(mux: &mut Mux) -> Result<Vec<Arrival>, WireError> {
    let mut all = Vec::new();
    while let Some(arrival) = mux.next_arrival()? {
        all.push(arrival);
    }
    Ok(all)
}

/// Pushes hand-made frames of the other end into a fresh launcher with stream 1 open.
fn hostile(write: impl FnOnce(&mut FrameWriter, &mut Vec<u8>)) -> Result<Vec<Arrival>, WireError> {
    let mut launcher = Mux::new(Side::Client);
    launcher.open(1).unwrap();
    let mut writer = FrameWriter::new(&FrameKey::OPENING, Side::Server);
    let mut bytes = Vec::new();
    write(&mut writer, &mut bytes);
    launcher.push(&bytes);
    arrivals(&mut launcher)
}

#[test]
fn a_message_longer_than_a_frame_arrives_whole() {
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    let long = "x".repeat(3 * MAX_PAYLOAD);
    launcher.send(&long).unwrap();
    carry(&mut launcher, &mut init);
    let [Arrival::Message(bytes)] = &arrivals(&mut init).unwrap()[..] else { panic!() };
    assert_eq!(parse::<String>(bytes), Ok(long));
}

#[test]
fn messages_are_bounded_both_ways() {
    let longest = "x".repeat(MAX_MESSAGE - 2);
    let mut launcher = Mux::new(Side::Client);
    assert!(launcher.send(&longest).is_ok());
    let over = format!("{longest}x");
    assert_eq!(launcher.send(&over), Err(WireError::MessageTooLong(MAX_MESSAGE)));

    let flood = hostile(|writer, bytes| {
        for _ in 0..=MAX_MESSAGE / MAX_PAYLOAD {
            writer.write(0, FrameKind::MessagePart, 0, &[b'x'; MAX_PAYLOAD], bytes);
        }
    });
    assert_eq!(flood, Err(WireError::MessageTooLong(MAX_MESSAGE)));
}

#[test]
fn a_message_that_makes_no_sense_is_an_error() {
    assert!(parse::<ToInit>(br#"{"message":"kill"}"#).is_ok());
    for bad in [&b""[..], b"{}", br#"{"message":"fly"}"#, b"\xff", br#"{"message":"go"}"#] {
        assert!(matches!(parse::<ToInit>(bad), Err(WireError::BadMessage(_))), "{bad:?}");
    }
}

#[test]
fn the_sender_stops_at_the_window() {
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    launcher.open(1).unwrap();
    init.open(1).unwrap();
    let data = vec![5; 3 * WINDOW as usize];
    let mut sent = 0;
    // Draining what waits shows that it is the window that stops, not the queue.
    for _ in 0..10 {
        sent += launcher.send_data(1, &data[sent..]);
        carry(&mut launcher, &mut init);
    }
    assert_eq!(sent as u64, WINDOW);
    assert_eq!(launcher.room(1), 0);
    let received: usize = arrivals(&mut init).unwrap().iter().map(length).sum();
    assert_eq!(received as u64, WINDOW);

    init.consumed(1, received);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![]));
    assert!(launcher.room(1) > 0, "what was consumed may come again");
}

/// Both ends of a channel, with some streams open.
fn pair(version: FrameVersion, streams: u32) -> (Mux, Mux) {
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    for mux in [&mut launcher, &mut init] {
        mux.use_version(version);
        (1..=streams).for_each(|stream| mux.open(stream).unwrap());
    }
    (launcher, init)
}

/// Sends on a stream until its window is used up: how much that is.
fn sent_until_it_stops(launcher: &mut Mux, init: &mut Mux, stream: u32) -> u64 {
    let mut sent = 0;
    for _ in 0..100 {
        let now = launcher.send_data(stream, &[5; 2 * DATA_AHEAD]);
        assert!(now <= DATA_AHEAD, "no more ever waits before a message");
        sent += now as u64;
        carry(launcher, init);
        arrivals(init).unwrap();
    }
    sent
}

#[test]
fn a_reader_can_widen_a_stream() {
    let (mut launcher, mut init) = pair(FrameVersion::V2, 2);
    init.widen(1);
    init.widen(1);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![]));
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, 1), WIDE_WINDOW);
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, 2), WINDOW, "control");
    // What is consumed may come again, and no more.
    init.consumed(1, WIDE_WINDOW as usize / 2);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![]));
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, 1), WIDE_WINDOW / 2);
}

#[test]
fn a_stream_that_is_used_already_can_be_widened() {
    let (mut launcher, mut init) = pair(FrameVersion::V2, 1);
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, 1), WINDOW);
    init.widen(1);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![]));
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, 1), WIDE_WINDOW - WINDOW);
}

#[test]
fn all_widened_streams_together_stay_within_the_budget() {
    let most = (WIDE_BUDGET / WIDE_WINDOW) as u32;
    let (mut launcher, mut init) = pair(FrameVersion::V2, most + 2);
    (1..=most + 2).for_each(|stream| init.widen(stream));
    assert_eq!(init.wide_bytes(), WIDE_BUDGET);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![]));
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, most), WIDE_WINDOW);
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, most + 1), WINDOW);
    // One that is over gives its share back.
    init.forget(1);
    init.widen(most + 2);
    assert_eq!(init.wide_bytes(), WIDE_BUDGET);
}

#[test]
fn a_stream_of_the_first_version_is_not_widened() {
    let (mut launcher, mut init) = pair(FrameVersion::V1, 1);
    init.widen(1);
    assert!(init.outgoing().is_empty());
    assert_eq!(sent_until_it_stops(&mut launcher, &mut init, 1), WINDOW);
}

#[test]
fn a_widened_window_cannot_grow_past_its_size() {
    let window = |offset| {
        let mut launcher = Mux::new(Side::Client);
        launcher.use_version(FrameVersion::V2);
        launcher.open(1).unwrap();
        let mut writer = FrameWriter::new(&FrameKey::OPENING, Side::Server);
        writer.use_version(FrameVersion::V2);
        let mut bytes = Vec::new();
        writer.write(1, FrameKind::Window, offset, &[], &mut bytes);
        launcher.push(&bytes);
        arrivals(&mut launcher)
    };
    assert_eq!(window(WIDE_WINDOW), Ok(vec![]));
    assert_eq!(window(WIDE_WINDOW + 1), Err(WireError::WindowExceeded(1)));
    assert_eq!(window(WINDOW - 1), Err(WireError::WindowExceeded(1)));
}

#[test]
fn a_sender_that_ignores_the_window_is_refused() {
    let write = |count: usize| {
        hostile(move |writer, bytes| {
            for index in 0..count {
                let offset = (index * MAX_PAYLOAD) as u64;
                writer.write(1, FrameKind::Data, offset, &[0; MAX_PAYLOAD], bytes);
            }
        })
    };
    let within = WINDOW as usize / MAX_PAYLOAD;
    assert_eq!(write(within).map(|all| all.len()), Ok(within));
    assert_eq!(write(within + 1), Err(WireError::WindowExceeded(1)));
}

#[test]
fn a_window_cannot_grow_past_its_size_or_shrink() {
    let window = |offset| {
        hostile(move |writer, bytes| writer.write(1, FrameKind::Window, offset, &[], bytes))
    };
    assert_eq!(window(WINDOW), Ok(vec![]));
    assert_eq!(window(WINDOW + 1), Err(WireError::WindowExceeded(1)));
    assert_eq!(window(u64::MAX), Err(WireError::WindowExceeded(1)));
    assert_eq!(window(WINDOW - 1), Err(WireError::WindowExceeded(1)));
}

#[test]
fn bytes_must_follow_each_other() {
    let at = |offset| {
        hostile(move |writer, bytes| {
            writer.write(1, FrameKind::Data, 0, b"abc", bytes);
            writer.write(1, FrameKind::Data, offset, b"def", bytes);
        })
    };
    assert_eq!(at(3).map(|all| all.len()), Ok(2));
    for wrong in [0, 2, 4, u64::MAX] {
        assert!(matches!(at(wrong), Err(WireError::WrongOffset { .. })), "{wrong}");
    }
}

#[test]
fn nothing_comes_after_the_end() {
    let ended = |more: bool| {
        hostile(move |writer, bytes| {
            writer.write(1, FrameKind::End, 0, &[], bytes);
            if more {
                writer.write(1, FrameKind::Data, 0, b"x", bytes);
            }
        })
    };
    assert_eq!(ended(false), Ok(vec![Arrival::End { stream: 1 }]));
    assert!(matches!(ended(true), Err(WireError::WrongOffset { .. })));
}

#[test]
fn only_open_streams_and_the_control_stream_exist() {
    let on =
        |stream, kind| hostile(move |writer, bytes| writer.write(stream, kind, 0, b"x", bytes));
    assert!(on(1, FrameKind::Data).is_ok());
    assert!(on(0, FrameKind::MessageEnd).is_ok());
    assert_eq!(on(2, FrameKind::Data), Err(WireError::UnknownStream(2)));
    assert_eq!(on(0, FrameKind::Data), Err(WireError::UnknownStream(0)));
    assert_eq!(on(1, FrameKind::MessageEnd), Err(WireError::UnknownStream(1)));
}

#[test]
fn the_number_of_streams_is_bounded_and_a_number_is_free_again() {
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    for stream in 1..=MAX_STREAMS as u32 {
        launcher.open(stream).unwrap();
        init.open(stream).unwrap();
    }
    assert!(launcher.open(1000).is_err());
    launcher.end(1);
    init.end(1);
    carry(&mut launcher, &mut init);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut init), Ok(vec![Arrival::End { stream: 1 }]));
    assert_eq!(arrivals(&mut launcher), Ok(vec![Arrival::End { stream: 1 }]));
    assert!(launcher.open(1000).is_ok());
}

#[test]
fn after_a_reset_nothing_more_is_sent() {
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    launcher.open(1).unwrap();
    init.open(1).unwrap();
    assert_eq!(launcher.send_data(1, b"abc"), 3);
    init.reset(1);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![Arrival::Reset { stream: 1 }]));
    assert_eq!(launcher.send_data(1, b"def"), 0);
}

/// A stream that only init writes to, open on both ends.
fn one_way() -> (Mux, Mux) {
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    launcher.open_for(1, Flow::Incoming).unwrap();
    init.open_for(1, Flow::Outgoing).unwrap();
    (launcher, init)
}

#[test]
fn a_one_way_stream_is_free_on_both_ends_when_its_writer_is_done() {
    let (mut launcher, mut init) = one_way();
    assert!(launcher.open(1).is_err() && init.open(1).is_err());
    assert_eq!(init.send_data(1, b"last"), 4);
    init.end(1);
    assert!(init.open(1).is_ok());
    carry(&mut init, &mut launcher);
    let all = arrivals(&mut launcher).unwrap();
    assert_eq!(all[1..], [Arrival::End { stream: 1 }]);
    assert!(launcher.open(1).is_ok());
}

#[test]
fn only_one_end_of_a_one_way_stream_writes() {
    let (mut launcher, mut init) = one_way();
    assert_eq!(launcher.send_data(1, b"x"), 0);
    assert_eq!(init.send_data(1, b"x"), 1);
    let mut writer = FrameWriter::new(&FrameKey::OPENING, Side::Client);
    let mut bytes = Vec::new();
    writer.write(1, FrameKind::Data, 0, b"x", &mut bytes);
    init.push(&bytes);
    assert!(matches!(arrivals(&mut init), Err(WireError::WrongOffset { .. })));
}

#[test]
fn a_window_or_a_reset_for_a_stream_that_has_just_ended_is_no_error() {
    let (mut launcher, mut init) = one_way();
    let sent = init.send_data(1, &[0; WINDOW as usize]);
    carry(&mut init, &mut launcher);
    arrivals(&mut launcher).unwrap();
    init.end(1);
    launcher.consumed(1, sent);
    launcher.reset(1);
    assert!(!launcher.outgoing().is_empty());
    carry(&mut launcher, &mut init);
    assert_eq!(arrivals(&mut init), Ok(Vec::new()));
    // The control: data for it would be an error.
    let late = hostile(|writer, bytes| writer.write(7, FrameKind::Data, 0, b"x", bytes));
    assert_eq!(late, Err(WireError::UnknownStream(7)));
}

#[test]
fn a_reader_that_gives_up_frees_the_stream_once_the_writer_ends_it() {
    let (mut launcher, mut init) = one_way();
    launcher.reset(1);
    let once = launcher.outgoing().len();
    launcher.reset(1);
    assert_eq!(launcher.outgoing().len(), once);
    carry(&mut launcher, &mut init);
    assert_eq!(arrivals(&mut init), Ok(vec![Arrival::Reset { stream: 1 }]));
    assert_eq!(init.room(1), 0);
    init.end(1);
    carry(&mut init, &mut launcher);
    assert_eq!(arrivals(&mut launcher), Ok(vec![Arrival::End { stream: 1 }]));
    assert!(launcher.open(1).is_ok() && init.open(1).is_ok());
}

fn length(arrival: &Arrival) -> usize {
    match arrival {
        Arrival::Data { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

/// What a test does next with a pair of ends that have stream 1 open.
#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    /// Carries at most this many bytes.
    Carry(usize),
    Consume(usize),
    CarryBack,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_usize..100_000).prop_map(Step::Send),
        (1_usize..100_000).prop_map(Step::Carry),
        (1_usize..100_000).prop_map(Step::Consume),
        Just(Step::CarryBack),
    ]
}

proptest! {
    /// The bytes arrive in order, and never more of them than the reader has room for.
    #[test]
    fn flow_control_holds(steps in prop::collection::vec(step(), 1..60)) {
        let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
        launcher.open(1).unwrap();
        init.open(1).unwrap();
        let (mut sent, mut received, mut consumed) = (0_usize, 0_usize, 0_usize);
        let byte = |at: usize| (at % 251) as u8;
        for step in steps {
            match step {
                Step::Send(count) => {
                    let data: Vec<u8> = (sent..sent + count).map(byte).collect();
                    sent += launcher.send_data(1, &data);
                }
                Step::Carry(limit) => {
                    let count = launcher.outgoing().len().min(limit);
                    let bytes = launcher.outgoing()[..count].to_vec();
                    launcher.sent(count);
                    init.push(&bytes);
                    for arrival in arrivals(&mut init).unwrap() {
                        let Arrival::Data { stream: 1, bytes } = arrival else {
                            panic!("{arrival:?}")
                        };
                        for found in bytes {
                            prop_assert_eq!(found, byte(received));
                            received += 1;
                        }
                    }
                }
                Step::Consume(limit) => {
                    let count = limit.min(received - consumed);
                    init.consumed(1, count);
                    consumed += count;
                }
                Step::CarryBack => {
                    carry(&mut init, &mut launcher);
                    prop_assert_eq!(arrivals(&mut launcher), Ok(vec![]));
                }
            }
            prop_assert!(received <= sent);
            prop_assert!(sent - consumed <= WINDOW as usize, "sent {sent}, consumed {consumed}");
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let mut mux = Mux::new(Side::Client);
        mux.push(&bytes);
        let _ = arrivals(&mut mux);
    }

    /// Frames with the right key and any content: the worst that a taken-over PID 1 can send.
    #[test]
    fn well_marked_nonsense_never_panics(
        frames in prop::collection::vec((0_u32..4, 0_usize..6, any::<u64>(), 0_usize..64), 0..40),
    ) {
        let kinds = [
            FrameKind::MessagePart,
            FrameKind::MessageEnd,
            FrameKind::Data,
            FrameKind::End,
            FrameKind::Window,
            FrameKind::Reset,
        ];
        let mut mux = Mux::new(Side::Client);
        mux.open(1).unwrap();
        mux.open(2).unwrap();
        let mut writer = FrameWriter::new(&FrameKey::OPENING, Side::Server);
        for (stream, kind, offset, length) in frames {
            let mut bytes = Vec::new();
            writer.write(stream, kinds[kind], offset % 200, &vec![1; length], &mut bytes);
            mux.push(&bytes);
            match arrivals(&mut mux) {
                Ok(all) => all.iter().for_each(|arrival| {
                    if let Arrival::Data { stream, bytes } = arrival {
                        mux.consumed(*stream, bytes.len());
                    }
                }),
                Err(_) => break,
            }
            let _ = mux.send_data(1, b"x");
            prop_assert!(mux.room(1) <= WINDOW as usize);
        }
    }
}
