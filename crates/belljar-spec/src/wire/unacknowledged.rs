//! Frames that were sent and that the other end has not acknowledged: what has to be sent again over a new link.

use zeroize::Zeroizing;

use super::frame::{WireError, frame_length};
use super::wipe;

/// Data is taken from commands only while less than this is under way.
pub(super) const DATA_UNDER_WAY: usize = 1 << 20;
/// With control messages too. More is an error: the other end acknowledges nothing.
pub(super) const MAX_UNDER_WAY: usize = 16 << 20;
/// How much arrives between two acknowledgements.
pub(super) const ACKNOWLEDGE_EVERY: usize = 32 << 10;

#[derive(Debug, Default)]
pub(super) struct Unacknowledged {
    /// Whole frames, and at the end perhaps the beginning of one that is being sent.
    bytes: Zeroizing<Vec<u8>>,
    /// The number of the first of them.
    first: u64,
    /// Bytes that arrived since this end acknowledged.
    pub(super) arrived: usize,
}

impl Unacknowledged {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// These bytes were written to the link.
    pub(super) fn keep(&mut self, sent: &[u8]) {
        wipe::reserve(&mut self.bytes, sent.len());
        self.bytes.extend_from_slice(sent);
    }

    /// The other end has everything before the frame `next`. An older number was sent again over a new link, where
    /// the resumption has said more already.
    pub(super) fn acknowledged(&mut self, next: u64) -> Result<(), WireError> {
        if next <= self.first {
            return Ok(());
        }
        let count = self.frames_before(next, &self.bytes)?;
        wipe::take_front(&mut self.bytes, count);
        self.first = next;
        Ok(())
    }

    /// What has to be sent over a new link to an end that lacks the frame `next` and all after it: the rest of what was
    /// kept, before `outgoing`, which was never sent whole.
    pub(super) fn again(
        &mut self,
        next: u64,
        outgoing: &mut Zeroizing<Vec<u8>>,
    ) -> Result<(), WireError> {
        let mut all = Zeroizing::new(Vec::with_capacity(self.bytes.len() + outgoing.len()));
        all.extend_from_slice(&self.bytes);
        all.extend_from_slice(outgoing);
        let count = self.frames_before(next, &all)?;
        wipe::take_front(&mut all, count);
        *outgoing = all; // the old one wipes itself
        self.bytes = Zeroizing::default();
        self.first = next;
        Ok(())
    }

    /// How many bytes the frames before `next` are.
    fn frames_before(&self, next: u64, bytes: &[u8]) -> Result<usize, WireError> {
        let wrong = WireError::BadAcknowledgement { first: self.first, found: next };
        let frames = next.checked_sub(self.first).ok_or_else(|| wrong.clone())?;
        let mut at = 0;
        for _ in 0..frames {
            let length = frame_length(&bytes[at..]).ok_or_else(|| wrong.clone())?;
            at += length;
            if at > bytes.len() {
                return Err(wrong);
            }
        }
        Ok(at)
    }
}
