//! Lends read buffers to connections for as long as bytes are moving.
//!
//! Idle connections hold none, and when many are active at once, later ones get smaller buffers.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

const LARGE: usize = 64 * 1024;
const SMALL: usize = 8 * 1024;
const MAX_LARGE: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    free: Vec<Box<[u8]>>,
    in_use: usize,
}

impl BufferPool {
    pub(crate) fn take(&self) -> Buffer<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match state.free.pop() {
            Some(bytes) => bytes,
            None if state.in_use < MAX_LARGE => vec![0; LARGE].into_boxed_slice(),
            None => return Buffer { pool: None, bytes: vec![0; SMALL].into_boxed_slice() },
        };
        state.in_use += 1;
        Buffer { pool: Some(self), bytes }
    }
}

/// Returned to its pool on drop.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    pool: Option<&'a BufferPool>,
    bytes: Box<[u8]>,
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if let Some(buffers) = self.pool {
            let mut state = buffers.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.in_use -= 1;
            state.free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_bounded_and_reused() {
        let buffers = BufferPool::default();
        let taken: Vec<_> = (0..MAX_LARGE + 3).map(|_| buffers.take()).collect();
        assert_eq!(taken.iter().filter(|buffer| buffer.len() == LARGE).count(), MAX_LARGE);
        assert!(taken.iter().skip(MAX_LARGE).all(|buffer| buffer.len() == SMALL));
        drop(taken);
        assert_eq!(buffers.take().len(), LARGE);
        assert_eq!(buffers.state.lock().unwrap().free.len(), MAX_LARGE);
    }
}
