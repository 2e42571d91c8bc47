//! Proves to both ends of a channel, over a new link, that the other one is who it was, and says where to go on.
//!
//! Only for links that can break while both ends live: a connection between machines. Three messages of fixed length,
//! before any frame:
//!
//! 1. challenge, launcher to PID 1: a magic number and a nonce.
//! 2. response: PID 1's nonce, the number of the next frame that it expects, and a MAC over both nonces and that
//!    number.
//! 3. confirmation: the number of the next frame that the launcher expects, and a MAC over all of it.
//!
//! The key is derived from the frame key of this launch. Both nonces are new for each link, so a recorded
//! message is of no use for another one, and the two MACs have different labels, so none can be sent back to its
//! author. PID 1 leaves the old link only after the confirmation. Then each end sends again what the other one
//! lacks ([`Mux::resume`](super::Mux::resume)); those frames have their own MACs.

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::frame::{FrameKey, same};

const MAGIC: [u8; 4] = *b"BJR1";
const NONCE: usize = 16;
const NUMBER: usize = 8;
const MAC: usize = 32;
const CHALLENGE: usize = MAGIC.len() + NONCE;
const RESPONSE: usize = NONCE + NUMBER + MAC;
const CONFIRMATION: usize = NUMBER + MAC;
const CONTEXT: &str = "belljar 2026 channel resumption";

/// New for each link.
pub type Nonce = [u8; NONCE];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    #[error("what connected does not ask to resume a channel")]
    NotAChallenge,
    #[error("what connected does not have this launch's key")]
    BadMac,
}

/// Of one launch.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ResumeKey([u8; 32]);

impl ResumeKey {
    pub fn of(key: &FrameKey) -> Self {
        Self(blake3::derive_key(CONTEXT, key.bytes()))
    }

    fn mac(&self, label: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(label);
        for part in parts {
            hasher.update(part); // of fixed length each
        }
        *hasher.finalize().as_bytes()
    }

    fn of_init(&self, challenge: &Nonce, response: &Nonce, next: u64) -> [u8; MAC] {
        self.mac(b"from init", &[challenge, response, &next.to_le_bytes()])
    }

    fn of_launcher(&self, challenge: &Nonce, response: &Nonce, next: [u64; 2]) -> [u8; MAC] {
        let [launchers, inits] = next.map(u64::to_le_bytes);
        self.mac(b"from the launcher", &[challenge, response, &launchers, &inits])
    }
}

impl std::fmt::Debug for ResumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResumeKey(…)")
    }
}

/// The other end has proved itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The number of the first frame that the other end lacks.
    pub peer_next: u64,
    /// Bytes that came after the last message: frames.
    pub rest: Vec<u8>,
}

/// The launcher's side of one link.
#[derive(Debug)]
pub struct ResumeClient {
    key: ResumeKey,
    nonce: Nonce,
    next: u64,
    received: Vec<u8>,
}

impl ResumeClient {
    /// `next` is the number of the next frame that this end expects. Sends the challenge.
    pub fn begin(key: &ResumeKey, nonce: Nonce, next: u64, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&nonce);
        Self { key: key.clone(), nonce, next, received: Vec::new() }
    }

    /// Takes bytes of the link. At the end the confirmation is in `out`, and comes before any frame.
    pub fn push(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Resumed>, ResumeError> {
        self.received.extend_from_slice(bytes);
        let Some((response, rest)) = self.received.split_at_checked(RESPONSE) else {
            return Ok(None);
        };
        let init_nonce: Nonce = part(response, 0);
        let peer_next = u64::from_le_bytes(part(response, NONCE));
        let mac = self.key.of_init(&self.nonce, &init_nonce, peer_next);
        if !same(&mac, &response[NONCE + NUMBER..]) {
            return Err(ResumeError::BadMac);
        }
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&self.key.of_launcher(
            &self.nonce,
            &init_nonce,
            [self.next, peer_next],
        ));
        Ok(Some(Resumed { peer_next, rest: rest.to_vec() }))
    }
}

/// PID 1's side of one link.
#[derive(Debug)]
pub struct ResumeServer {
    key: ResumeKey,
    nonce: Nonce,
    next: u64,
    challenge: Option<Nonce>,
    received: Vec<u8>,
}

impl ResumeServer {
    pub fn new(key: &ResumeKey, nonce: Nonce, next: u64) -> Self {
        Self { key: key.clone(), nonce, next, challenge: None, received: Vec::new() }
    }

    /// Takes bytes of the link. The response is put into `out`.
    pub fn push(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Resumed>, ResumeError> {
        self.received.extend_from_slice(bytes);
        if self.challenge.is_none() {
            let so_far = self.received.len().min(MAGIC.len());
            if self.received[..so_far] != MAGIC[..so_far] {
                return Err(ResumeError::NotAChallenge);
            }
            let Some(message) = self.received.get(..CHALLENGE) else { return Ok(None) };
            let challenge: Nonce = part(message, MAGIC.len());
            self.received.drain(..CHALLENGE);
            self.challenge = Some(challenge);
            out.extend_from_slice(&self.nonce);
            out.extend_from_slice(&self.next.to_le_bytes());
            out.extend_from_slice(&self.key.of_init(&challenge, &self.nonce, self.next));
        }
        let Some(challenge) = self.challenge else { return Ok(None) };
        let Some((message, rest)) = self.received.split_at_checked(CONFIRMATION) else {
            return Ok(None);
        };
        let peer_next = u64::from_le_bytes(part(message, 0));
        let mac = self.key.of_launcher(&challenge, &self.nonce, [peer_next, self.next]);
        if !same(&mac, &message[NUMBER..]) {
            return Err(ResumeError::BadMac);
        }
        Ok(Some(Resumed { peer_next, rest: rest.to_vec() }))
    }
}

/// The message is as long as its callers say.
fn part<const N: usize>(message: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&message[at..at + N]);
    bytes
}
