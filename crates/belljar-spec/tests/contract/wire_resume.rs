//! A channel over a link that breaks: whatever byte it breaks at, both ends see what they would have seen.

use belljar_spec::wire::{
    Arrival, FrameKey, Mux, Nonce, ResumeClient, ResumeError, ResumeKey, ResumeServer, Side,
    WireError,
};
use proptest::prelude::*;

const STREAM: u32 = 1;

fn key() -> FrameKey {
    FrameKey::new([7; 32])
}

/// One end: what it sends, and what has arrived.
struct End {
    mux: Mux,
    to_send: Vec<u8>,
    at: usize,
    messages: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    ended: bool,
}

impl End {
    fn new(side: Side, to_send: &[u8]) -> Self {
        let mut mux = Mux::new(side);
        mux.keep_unacknowledged();
        mux.rekey(&key());
        mux.open(STREAM).unwrap();
        let to_send = to_send.to_vec();
        Self { mux, to_send, at: 0, messages: Vec::new(), bytes: Vec::new(), ended: false }
    }

    fn step(&mut self) {
        if self.at < self.to_send.len() {
            self.at += self.mux.send_data(STREAM, &self.to_send[self.at..]);
            if self.at == self.to_send.len() {
                self.mux.send(&"all of it").unwrap();
                self.mux.end(STREAM);
            }
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.mux.push(bytes);
        while let Some(arrival) = self.mux.next_arrival()? {
            match arrival {
                Arrival::Message(message) => self.messages.push(message.to_vec()),
                Arrival::Data { bytes, .. } => {
                    self.bytes.extend_from_slice(&bytes);
                    self.mux.consumed(STREAM, bytes.len());
                }
                Arrival::End { .. } => self.ended = true,
                Arrival::Reset { .. } => panic!("nothing was reset"),
            }
        }
        Ok(())
    }
}

/// Carries at most `most` bytes; what one side had written beyond that is lost with the link.
fn carry(from: &mut End, to: &mut End, most: &mut usize) -> Result<(), WireError> {
    let written = from.mux.outgoing().len();
    let bytes = from.mux.outgoing()[..written.min(*most)].to_vec();
    from.mux.sent(written); // the kernel took all of it
    *most -= bytes.len();
    to.receive(&bytes)
}

/// One exchange over a new link, in pieces of one byte. The nonces are what a caller draws.
fn resume(launcher: &mut End, init: &mut End, nonces: (Nonce, Nonce)) {
    let key = ResumeKey::of(&key());
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let mut server = ResumeServer::new(&key, nonces.1, init.mux.next_frame());
    let mut client = ResumeClient::begin(&key, nonces.0, launcher.mux.next_frame(), &mut there);
    let (mut of_client, mut of_server) = (None, None);
    while of_client.is_none() || of_server.is_none() {
        for byte in std::mem::take(&mut there) {
            of_server = server.push(&[byte], &mut back).unwrap().or(of_server);
        }
        for byte in std::mem::take(&mut back) {
            of_client = client.push(&[byte], &mut there).unwrap().or(of_client);
        }
    }
    launcher.mux.resume(of_client.unwrap().peer_next).unwrap();
    init.mux.resume(of_server.unwrap().peer_next).unwrap();
}

/// Runs to the end over links that carry so many bytes each, and then one that holds.
fn run(there: &[u8], back: &[u8], cuts: &[usize]) {
    let (mut launcher, mut init) = (End::new(Side::Client, there), End::new(Side::Server, back));
    let mut cuts = cuts.iter().copied().chain([usize::MAX]);
    let mut left = cuts.next().unwrap();
    for number in 0_u32.. {
        launcher.step();
        init.step();
        let before = left;
        carry(&mut launcher, &mut init, &mut left).unwrap();
        carry(&mut init, &mut launcher, &mut left).unwrap();
        if left == 0 {
            left = cuts.next().unwrap();
            let mut nonce = [0; 16];
            nonce[..4].copy_from_slice(&number.to_le_bytes());
            resume(&mut launcher, &mut init, (nonce, nonce.map(|byte| !byte)));
        } else if before == left {
            break; // nothing was under way
        }
    }
    for (end, sent) in [(&launcher, back), (&init, there)] {
        assert!(end.bytes == sent, "{} of {} bytes", end.bytes.len(), sent.len());
        assert_eq!((end.messages.len(), end.ended), (1, true));
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|number| (number * 31 % 251) as u8).collect()
}

/// A frame in the middle, and both ends have something to say.
#[test]
fn cut_at_every_byte() {
    let (there, back) = (content(500), content(300));
    for cut in 1..1200 {
        run(&there, &back, &[cut]);
        run(&there, &back, &[cut, 10, 60]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// More than a window each way, so that acknowledgements and windows are cut too.
    #[test]
    fn cut_anywhere(
        there in 1_usize..400_000,
        back in 1_usize..400_000,
        cuts in proptest::collection::vec(1_usize..150_000, 0..8),
    ) {
        run(&content(there), &content(back), &cuts);
    }
}

fn handshake(client_key: &ResumeKey, server_key: &ResumeKey) -> Result<(), ResumeError> {
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let mut client = ResumeClient::begin(client_key, [1; 16], 5, &mut there);
    let mut server = ResumeServer::new(server_key, [2; 16], 9);
    server.push(&there, &mut back)?;
    there.clear();
    let resumed = client.push(&back, &mut there)?.unwrap();
    assert_eq!(resumed.peer_next, 9);
    let resumed = server.push(&there, &mut back)?.unwrap();
    assert_eq!(resumed.peer_next, 5);
    Ok(())
}

#[test]
fn only_who_has_the_key_can_resume() {
    let right = ResumeKey::of(&key());
    let wrong = ResumeKey::of(&FrameKey::new([8; 32]));
    assert_eq!(handshake(&right, &right), Ok(()));
    assert_eq!(handshake(&wrong, &right), Err(ResumeError::BadMac));
    // PID 1's proof comes first; without asking for it an impostor still has to show its own.
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let _ = ResumeClient::begin(&wrong, [1; 16], 5, &mut there);
    let mut server = ResumeServer::new(&right, [2; 16], 9);
    assert_eq!(server.push(&there, &mut back), Ok(None));
    assert_eq!(server.push(&[0; 40], &mut back), Err(ResumeError::BadMac));
    let mut server = ResumeServer::new(&right, [2; 16], 9);
    assert_eq!(server.push(b"GET / HTTP/1.1", &mut back), Err(ResumeError::NotAChallenge));
}

/// What was recorded on one link is refused on the next: PID 1's nonce is another one. So is the launcher's.
#[test]
fn a_recorded_resumption_does_not_work_twice() {
    let key = ResumeKey::of(&key());
    let (mut challenge, mut response, mut confirmation) = (Vec::new(), Vec::new(), Vec::new());
    let mut client = ResumeClient::begin(&key, [1; 16], 5, &mut challenge);
    let mut server = ResumeServer::new(&key, [2; 16], 9);
    server.push(&challenge, &mut response).unwrap();
    client.push(&response, &mut confirmation).unwrap().unwrap();
    assert!(server.push(&confirmation, &mut Vec::new()).unwrap().is_some()); // the control
    let mut again = ResumeServer::new(&key, [3; 16], 9);
    assert_eq!(again.push(&challenge, &mut Vec::new()), Ok(None));
    assert_eq!(again.push(&confirmation, &mut Vec::new()), Err(ResumeError::BadMac));
    let mut again = ResumeClient::begin(&key, [4; 16], 5, &mut Vec::new());
    assert_eq!(again.push(&response, &mut Vec::new()), Err(ResumeError::BadMac));
}

/// A number that somebody changed on the way is not believed.
#[test]
fn every_changed_bit_of_the_exchange_is_noticed() {
    let key = ResumeKey::of(&key());
    let (mut challenge, mut response, mut confirmation) = (Vec::new(), Vec::new(), Vec::new());
    let mut client = ResumeClient::begin(&key, [1; 16], 5, &mut challenge);
    ResumeServer::new(&key, [2; 16], 9).push(&challenge, &mut response).unwrap();
    client.push(&response, &mut confirmation).unwrap().unwrap();
    for bit in 0..8 * response.len() {
        let mut changed = response.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut client = ResumeClient::begin(&key, [1; 16], 5, &mut Vec::new());
        assert_eq!(client.push(&changed, &mut Vec::new()), Err(ResumeError::BadMac), "{bit}");
    }
    for bit in 0..8 * confirmation.len() {
        let mut changed = confirmation.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut server = ResumeServer::new(&key, [2; 16], 9);
        server.push(&challenge, &mut Vec::new()).unwrap();
        assert_eq!(server.push(&changed, &mut Vec::new()), Err(ResumeError::BadMac), "{bit}");
    }
}

/// While nothing is acknowledged, no more data is taken, and in the end no message either.
#[test]
fn what_waits_to_be_sent_again_is_bounded() {
    let mut end = End::new(Side::Client, &[]);
    for stream in 2..100 {
        end.mux.open(stream).unwrap();
        while end.mux.send_data(stream, &content(4096)) > 0 {
            let written = end.mux.outgoing().len();
            end.mux.sent(written);
        }
    }
    let refused = (0..10_000).find_map(|_| {
        let sent = end.mux.send(&"x".repeat(1 << 20));
        let written = end.mux.outgoing().len();
        end.mux.sent(written);
        sent.err()
    });
    let Some(WireError::NothingAcknowledged(bytes)) = refused else { panic!("{refused:?}") };
    assert!(bytes < 17 << 20, "{bytes}");
    // Data alone stays far below that.
    let mut end = End::new(Side::Client, &[]);
    let mut taken = 0;
    for stream in 2..100 {
        end.mux.open(stream).unwrap();
        loop {
            let count = end.mux.send_data(stream, &content(4096));
            let written = end.mux.outgoing().len();
            end.mux.sent(written);
            taken += count;
            if count == 0 {
                break;
            }
        }
    }
    assert!((512 << 10..=1 << 20).contains(&taken), "{taken}");
}

/// An acknowledgement of what was never sent is an error, and so is any where the link cannot break.
#[test]
fn a_false_acknowledgement_is_refused() {
    let mut end = End::new(Side::Client, &[]);
    assert!(end.mux.resume(0).is_ok()); // nothing was sent: nothing is missing
    assert!(matches!(end.mux.resume(1), Err(WireError::BadAcknowledgement { .. })));
    end.mux.send(&"one").unwrap();
    assert!(end.mux.resume(1).is_ok());
    assert!(matches!(end.mux.resume(0), Err(WireError::BadAcknowledgement { .. })));
    let mut plain = Mux::new(Side::Client);
    assert!(plain.resume(0).is_err());
}
