//! Recognises how a stream is compressed, and undoes it.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// How a layer or an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// By the first bytes: media types are not always true.
    pub(crate) fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, 0x08, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A frame of zstd that readers skip can come first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// The uncompressed bytes of a stream.
pub(crate) enum Decompressor<R: BufRead> {
    None(R),
    Gzip(Box<MultiGzDecoder<R>>),
    Zstd(Box<ZstdFrames<R>>),
}

impl<R: BufRead> std::fmt::Debug for Decompressor<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None(_) => "Decompressor::None",
            Self::Gzip(_) => "Decompressor::Gzip",
            Self::Zstd(_) => "Decompressor::Zstd",
        })
    }
}

impl<R: BufRead> Decompressor<R> {
    pub(crate) fn new(mut input: R) -> io::Result<Self> {
        let compression = Compression::of(input.fill_buf()?);
        Ok(match compression {
            Compression::None => Self::None(input),
            Compression::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(input))),
            Compression::Zstd => Self::Zstd(Box::new(ZstdFrames::new(input))),
        })
    }
}

impl<R: BufRead> Read for Decompressor<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::None(input) => input.read(into),
            Self::Gzip(decoder) => decoder.read(into),
            Self::Zstd(frames) => frames.read(into),
        }
    }
}

/// Frames of zstd one after the other; frames that are to be skipped are skipped.
pub(crate) struct ZstdFrames<R: BufRead> {
    state: ZstdState<R>,
}

enum ZstdState<R: BufRead> {
    Between(R),
    Frame(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    Broken,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(input: R) -> Self {
        Self { state: ZstdState::Between(input) }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.state, ZstdState::Broken) {
                ZstdState::Broken => return Err(io::Error::other("the zstd stream is broken")),
                ZstdState::Between(mut input) => {
                    if input.fill_buf()?.is_empty() {
                        self.state = ZstdState::Between(input);
                        return Ok(0);
                    }
                    if skip_frame(&mut input)? {
                        self.state = ZstdState::Between(input);
                        continue;
                    }
                    let decoder = StreamingDecoder::new(input).map_err(io::Error::other)?;
                    self.state = ZstdState::Frame(Box::new(decoder));
                }
                ZstdState::Frame(mut decoder) => {
                    let read = decoder.read(into)?;
                    if read > 0 {
                        self.state = ZstdState::Frame(decoder);
                        return Ok(read);
                    }
                    self.state = ZstdState::Between(decoder.into_inner());
                }
            }
        }
    }
}

/// Skips one frame that holds no data, if there is one. The magic number may be split between two fills.
fn skip_frame(input: &mut impl BufRead) -> io::Result<bool> {
    let head = input.fill_buf()?;
    if head.len() >= 4 && !matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]) {
        return Ok(false);
    }
    if head.first().is_some_and(|byte| !(0x50..=0x5f).contains(byte)) {
        return Ok(false);
    }
    let mut header = [0; 8];
    input.read_exact(&mut header)?;
    let [a, b, c, d, size @ ..] = header;
    if !matches!([a, b, c, d], [0x50..=0x5f, 0x2a, 0x4d, 0x18]) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no frame of zstd begins here"));
    }
    let size = u64::from(u32::from_le_bytes(size));
    let skipped = io::copy(&mut input.take(size), &mut io::sink())?;
    match skipped == size {
        true => Ok(true),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
