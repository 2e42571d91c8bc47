//! Reads, hashes and decompresses a layer on a thread of its own, ahead of who unpacks it.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use crate::compression::Decompressor;
use crate::digest::{Digest, Hasher};

const PIECE: usize = 512 * 1024;
/// Pieces that may wait for the reader of the stream.
const MAX_WAITING: usize = 4;

/// The uncompressed bytes of a stream.
#[derive(Debug)]
pub(crate) struct AheadReader {
    pieces: Receiver<io::Result<Vec<u8>>>,
    used: Sender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl BufRead for AheadReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.current.len() && !self.is_over {
            let used = std::mem::take(&mut self.current);
            self.at = 0;
            let _ = self.used.send(used); // the thread may have ended
            match self.pieces.recv() {
                Ok(piece) => self.current = piece.inspect_err(|_| self.is_over = true)?,
                Err(_) => self.is_over = true,
            }
        }
        Ok(&self.current[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.current.len());
    }
}

impl Read for AheadReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let length = piece.len().min(into.len());
        into[..length].copy_from_slice(&piece[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// Has `work` read the uncompressed bytes, and tells their digest. It must read all of them: where it stops before,
/// there is no digest but an error. The bytes as they are stored were checked when they came into the store.
pub(crate) fn read_ahead<T>(
    blob: impl Read + Send,
    work: impl FnOnce(&mut AheadReader) -> T,
) -> (T, io::Result<Digest>) {
    std::thread::scope(|scope| {
        let (pieces_to, pieces) = sync_channel(MAX_WAITING);
        let (used, used_from) = channel();
        let thread = scope.spawn(move || decode(blob, &pieces_to, &used_from));
        let mut reader = AheadReader { pieces, used, current: Vec::new(), at: 0, is_over: false };
        let done = work(&mut reader);
        drop(reader);
        let digest = thread.join().unwrap_or_else(|_| Err(io::Error::other("the reader failed")));
        (done, digest)
    })
}

fn decode(
    blob: impl Read,
    pieces: &SyncSender<io::Result<Vec<u8>>>,
    used: &Receiver<Vec<u8>>,
) -> io::Result<Digest> {
    let stopped = || io::Error::other("reading was stopped before the end");
    let input = BufReader::with_capacity(PIECE, blob);
    let mut hasher = Hasher::default();
    let decoded: io::Result<()> = (|| {
        let mut decoder = Decompressor::new(input)?;
        loop {
            let mut piece = used.try_recv().unwrap_or_default();
            if piece.len() != PIECE {
                piece.resize(PIECE, 0);
            }
            let filled = fill(&mut decoder, &mut piece)?;
            hasher.update(&piece[..filled]);
            let is_end = filled < PIECE;
            piece.truncate(filled);
            if filled > 0 {
                pieces.send(Ok(piece)).map_err(|_| stopped())?;
            }
            if is_end {
                return Ok(());
            }
        }
    })();
    match decoded {
        Ok(()) => Ok(hasher.finish()),
        Err(error) => {
            let copy = io::Error::new(error.kind(), error.to_string());
            let _ = pieces.send(Err(error)); // nobody may be there any more
            Err(copy)
        }
    }
}

/// Reads until the piece is full or the stream is at its end.
fn fill(from: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) => break,
            Ok(read) => filled += read,
        }
    }
    Ok(filled)
}
