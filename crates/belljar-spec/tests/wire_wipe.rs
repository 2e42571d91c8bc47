//! Nothing of a message stays in memory once it has been read.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use belljar_spec::wire::{Arrival, Mux, Side};
use serde::Serialize;
use zeroize::{Zeroize, Zeroizing};

const LENGTH: usize = 32;
const PAGE: usize = 4096;

/// Never in memory as it is, so that only copies that the channel made are found.
struct Needle([u8; LENGTH]);

impl Needle {
    fn is_at(&self, bytes: &[u8]) -> bool {
        bytes.iter().zip(&self.0).all(|(byte, hidden)| *byte == hidden ^ 0x20)
    }

    /// A message with many of them.
    fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2000 * LENGTH));
        for _ in 0..2000 {
            self.0.iter().for_each(|hidden| text.push(char::from(hidden ^ 0x20)));
        }
        text
    }

    /// How often it is in what this process may write.
    fn count(&self) -> usize {
        write_over_stack();
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // With so much around it that nothing else is passed over with it.
        let mut around = vec![0; 16 * PAGE];
        let buffer = &mut around[8 * PAGE..10 * PAGE];
        let own = buffer.as_ptr_range();
        let own = own.start as u64..own.end as u64;
        let mut found = 0;
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let (from, to) = (address(from), address(to));
            for at in (from..to).step_by(PAGE) {
                let length = (PAGE + LENGTH - 1).min((to - at) as usize);
                if at < own.end && own.start < at + length as u64 {
                    continue; // what was read itself
                }
                let read = memory.read_at(&mut buffer[..length], at).unwrap_or(0);
                found += buffer[..read].windows(LENGTH).filter(|bytes| self.is_at(bytes)).count();
                buffer.fill(0);
            }
        }
        found
    }
}

/// What a hash or a copy left there is none of the channel's: the next call would have written over it.
#[inline(never)]
fn write_over_stack() {
    std::hint::black_box(&mut [0_u8; 512 * 1024]);
}

#[derive(Serialize)]
struct Launch<'a> {
    before: u8,
    secret: &'a str,
}

#[test]
fn nothing_of_a_message_stays_behind() {
    let mut hidden = [0; LENGTH];
    hidden.iter_mut().enumerate().for_each(|(at, byte)| *byte = b'A' + (at * 7 % 26) as u8);
    let needle = Needle(hidden);
    let (mut launcher, mut init) = (Mux::new(Side::Client), Mux::new(Side::Server));
    launcher.open(1).unwrap();
    init.open(1).unwrap();
    {
        let text = needle.text();
        assert!(needle.count() >= 2000, "the control: what is there is found");
        launcher.send(&Launch { before: 1, secret: &text }).unwrap();
        launcher.send_data(1, b"data in between");
        launcher.send(&Launch { before: 2, secret: &text }).unwrap();
    }
    let mut messages = 0;
    while !launcher.outgoing().is_empty() {
        let count = launcher.outgoing().len().min(7001); // no frame ends there
        let mut piece = [0; 7001];
        piece[..count].copy_from_slice(&launcher.outgoing()[..count]);
        launcher.sent(count);
        init.push(&piece[..count]);
        piece.zeroize();
        while let Some(arrival) = init.next_arrival().unwrap() {
            if let Arrival::Message(message) = arrival {
                assert!(message.len() > 2000 * LENGTH);
                messages += 1;
            }
        }
    }
    assert_eq!(messages, 2);
    assert_eq!(needle.count(), 0);
    drop((launcher, init));
    assert_eq!(needle.count(), 0);
}
