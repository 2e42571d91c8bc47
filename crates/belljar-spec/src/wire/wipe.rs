//! Wipes the buffers that messages pass through, because a launch carries secrets that must not stay in memory.

use zeroize::Zeroize;

/// Reserves room for `more` bytes. Where that needs a new allocation, the old one is wiped before it is freed.
pub(super) fn reserve(buffer: &mut Vec<u8>, more: usize) {
    if buffer.capacity() - buffer.len() >= more {
        return;
    }
    let capacity = (buffer.len() + more).max(2 * buffer.capacity());
    let mut grown = Vec::with_capacity(capacity);
    grown.extend_from_slice(buffer);
    buffer.zeroize();
    *buffer = grown;
}

/// Removes `count` bytes from the front, and wipes what is left of them and of moved bytes.
pub(super) fn take_front(buffer: &mut Vec<u8>, count: usize) {
    let left = buffer.len() - count;
    buffer.copy_within(count.., 0);
    buffer[left..].zeroize();
    buffer.truncate(left);
}

/// Counts what would be written: a text that grows while it is made leaves pieces of itself in memory.
#[derive(Default)]
pub(super) struct Length(pub(super) usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
