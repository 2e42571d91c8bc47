//! Buffers that messages pass through. A launch carries values that nobody is to find in memory afterwards, so
//! where a message was, nothing of it stays.

use zeroize::Zeroize;

/// Room for so many more bytes. Where that takes another allocation, the old one is given back empty.
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

/// Takes so many bytes away from the front. Neither they stay behind nor a copy of what came after them.
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
