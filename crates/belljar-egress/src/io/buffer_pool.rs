//! Memory for bytes on their way. A connection has some only while bytes pass, so that many idle ones cost
//! little; when many are busy at once, the later ones get less.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

const LARGE: usize = 64 * 1024;
const SMALL: usize = 8 * 1024;
const MOST_LARGE: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Buffers {
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    free: Vec<Box<[u8]>>,
    lent: usize,
}

impl Buffers {
    pub(crate) fn take(&self) -> Buffer<'_> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match shelf.free.pop() {
            Some(bytes) => bytes,
            None if shelf.lent < MOST_LARGE => vec![0; LARGE].into_boxed_slice(),
            None => return Buffer { of: None, bytes: vec![0; SMALL].into_boxed_slice() },
        };
        shelf.lent += 1;
        Buffer { of: Some(self), bytes }
    }
}

/// Goes back where it came from.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    of: Option<&'a Buffers>,
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
        if let Some(buffers) = self.of {
            let mut shelf = buffers.shelf.lock().unwrap_or_else(PoisonError::into_inner);
            shelf.lent -= 1;
            shelf.free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ones_are_few_and_come_back() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..MOST_LARGE + 3).map(|_| buffers.take()).collect();
        assert_eq!(taken.iter().filter(|buffer| buffer.len() == LARGE).count(), MOST_LARGE);
        assert!(taken.iter().skip(MOST_LARGE).all(|buffer| buffer.len() == SMALL));
        drop(taken);
        assert_eq!(buffers.take().len(), LARGE);
        assert_eq!(buffers.shelf.lock().unwrap().free.len(), MOST_LARGE);
    }
}
