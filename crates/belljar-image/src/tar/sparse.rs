//! Maps of sparse files: which pieces of a file have data.

use std::io::BufRead;

use super::header::{BLOCK, sparse_pieces};
use super::pax::decimal;
use super::{TarError, read_failed};

/// A piece of a sparse file that has data in the archive; between the pieces are holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Checks that the pieces are in order, lie in the file, and hold as much as the archive has.
pub(super) fn checked(
    pieces: &[(u64, u64)],
    real_size: u64,
    stored: u64,
    at: u64,
) -> Result<Vec<Segment>, TarError> {
    let bad = || TarError::Sparse { at };
    let (mut end, mut sum) = (0_u64, 0_u64);
    let mut segments = Vec::new();
    for (offset, length) in pieces.iter().copied() {
        if offset < end {
            return Err(bad());
        }
        end = offset.checked_add(length).ok_or_else(bad)?;
        sum = sum.checked_add(length).ok_or_else(bad)?;
        if length > 0 {
            segments.push(Segment { offset, length });
        }
    }
    match end <= real_size && sum == stored {
        true => Ok(segments),
        false => Err(bad()),
    }
}

/// The blocks with more pieces that follow an old GNU sparse header.
pub(super) fn read_old_extensions(
    input: &mut dyn BufRead,
    position: &mut u64,
    pieces: &mut Vec<(u64, u64)>,
    most: usize,
) -> Result<(), TarError> {
    loop {
        let at = *position;
        let mut block = [0; BLOCK];
        input.read_exact(&mut block).map_err(read_failed)?;
        *position += BLOCK as u64;
        pieces.extend(sparse_pieces(&block[..504], at)?);
        if pieces.len() > most {
            return Err(TarError::Sparse { at });
        }
        if block[504] == 0 {
            return Ok(());
        }
    }
}

/// The map of version 1.0, which stands before the data: decimal numbers, each on a line, in whole blocks.
/// Gives the pieces and how many bytes of the entry they took.
pub(super) fn read_map(
    input: &mut dyn BufRead,
    stored: u64,
    most: usize,
    at: u64,
) -> Result<(Vec<(u64, u64)>, u64), TarError> {
    let bad = || TarError::Sparse { at };
    let mut block = [0; BLOCK];
    let (mut taken, mut place) = (0_u64, BLOCK);
    let mut next_number = |taken: &mut u64| -> Result<u64, TarError> {
        let mut digits = Vec::new();
        loop {
            if place == BLOCK {
                if *taken + BLOCK as u64 > stored {
                    return Err(bad());
                }
                input.read_exact(&mut block).map_err(read_failed)?;
                *taken += BLOCK as u64;
                place = 0;
            }
            let byte = block[place];
            place += 1;
            match byte {
                b'\n' => return decimal(&digits).ok_or_else(bad),
                byte if digits.len() < 20 => digits.push(byte),
                _ => return Err(bad()),
            }
        }
    };
    let count = usize::try_from(next_number(&mut taken)?).map_err(|_| bad())?;
    if count > most {
        return Err(bad());
    }
    let mut pieces = Vec::new();
    for _ in 0..count {
        let offset = next_number(&mut taken)?;
        pieces.push((offset, next_number(&mut taken)?));
    }
    Ok((pieces, taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_must_be_in_order_and_in_the_file() {
        let good = checked(&[(0, 10), (20, 5), (100, 0)], 100, 15, 0).unwrap();
        assert_eq!(good.len(), 2);
        for (pieces, size, stored) in [
            (&[(20, 5), (0, 10)][..], 100, 15),
            (&[(0, 10), (5, 10)], 100, 20),
            (&[(0, 10), (95, 10)], 100, 20),
            (&[(0, 10)], 100, 11),
            (&[(u64::MAX, 2)], u64::MAX, 2),
        ] {
            assert!(checked(pieces, size, stored, 0).is_err(), "{pieces:?}");
        }
    }

    #[test]
    fn a_map_before_the_data_is_read_in_blocks() {
        let mut text = b"2\n0\n5\n1000\n7\n".to_vec();
        text.resize(BLOCK, 0);
        let (pieces, taken) = read_map(&mut &text[..], 600, 10, 0).unwrap();
        assert_eq!((pieces, taken), (vec![(0, 5), (1000, 7)], 512));
        assert!(read_map(&mut &text[..], 600, 1, 0).is_err());
        assert!(read_map(&mut &text[..], 100, 10, 0).is_err());
        assert!(read_map(&mut &[b'9'; BLOCK][..], 600, 10, 0).is_err());
    }
}
