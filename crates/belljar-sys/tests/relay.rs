//! Connections that share a channel.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use belljar_spec::wire::mux::DATA_AHEAD;
use belljar_spec::wire::{Arrival, Mux, Side};
use belljar_sys::relay::{Relay, Relays};

#[test]
fn each_of_many_has_its_turn_to_be_first() {
    let streams = [7, 8, 9];
    let (mut ours, mut theirs) = (Mux::new(Side::Client), Mux::new(Side::Server));
    let mut relays = Relays::default();
    let mut others = Vec::new();
    for stream in streams {
        let (far, near) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        others.push(far);
        ours.open(stream).unwrap();
        theirs.open(stream).unwrap();
        relays.push(Relay::new(near.into(), stream).unwrap());
    }
    let mut first = Vec::new();
    for _ in streams {
        // Each has more than the channel takes at once.
        for other in &mut others {
            while other.write(&[0; DATA_AHEAD]).is_ok() {}
        }
        relays.move_bytes(&streams, &mut ours);
        let arrivals = carry(&mut ours, &mut theirs);
        let Arrival::Data { stream, .. } = arrivals[0] else { panic!("{arrivals:?}") };
        first.push(stream);
        for arrival in arrivals {
            if let Arrival::Data { stream, bytes } = arrival {
                theirs.consumed(stream, bytes.len());
            }
        }
        carry(&mut theirs, &mut ours);
    }
    assert_eq!(first, streams);
}

fn carry(from: &mut Mux, to: &mut Mux) -> Vec<Arrival> {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    to.push(&bytes);
    std::iter::from_fn(|| to.next_arrival().unwrap()).collect()
}

/// The best of several, so that what else the machine does counts little.
fn time_to_find(relays: &mut Relays, stream: u32) -> Duration {
    let once = |relays: &mut Relays| {
        let begun = Instant::now();
        for _ in 0..2000 {
            assert!(std::hint::black_box(relays.get(stream)).is_some());
        }
        begun.elapsed()
    };
    (0..10).map(|_| once(relays)).min().unwrap()
}

#[test]
fn one_among_many_is_found_almost_as_soon_as_one_among_few() {
    let (_far, near) = UnixStream::pair().unwrap();
    let mut relays = Relays::default();
    let fill_up_to = |relays: &mut Relays, count: usize| {
        for stream in relays.count(..)..count {
            let fd = near.try_clone().unwrap();
            relays.push(Relay::new(fd.into(), stream as u32).unwrap());
        }
    };
    fill_up_to(&mut relays, 8);
    let among_few = time_to_find(&mut relays, 7);
    fill_up_to(&mut relays, 640);
    let among_many = time_to_find(&mut relays, 639);
    assert!(among_many < 40 * among_few, "{among_many:?} and {among_few:?}");
}
