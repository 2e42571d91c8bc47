//! Writes the plain archives that this crate exports: directories and files with short names.

use std::io::{self, Read, Write};

use super::header::BLOCK;

/// An archive in the making.
#[derive(Debug)]
pub(crate) struct TarWriter<W> {
    output: W,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(output: W) -> Self {
        Self { output }
    }

    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        let header = header(path, b'5', 0o755, 0)?;
        self.output.write_all(&header)
    }

    /// `content` must have exactly `size` bytes.
    pub(crate) fn file(&mut self, path: &str, size: u64, content: &mut dyn Read) -> io::Result<()> {
        let header = header(path, b'0', 0o644, size)?;
        self.output.write_all(&header)?;
        let copied = io::copy(&mut content.take(size), &mut self.output)?;
        if copied != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        io::copy(&mut io::repeat(0).take(padding), &mut self.output)?;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.output.write_all(&[0; 2 * BLOCK])?;
        self.output.flush()?;
        Ok(self.output)
    }
}

/// The time is 0, so that the same image makes the same archive.
fn header(path: &str, kind: u8, mode: u32, size: u64) -> io::Result<[u8; BLOCK]> {
    let mut header = [0_u8; BLOCK];
    if path.len() > 100 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is too long for tar"));
    }
    header[..path.len()].copy_from_slice(path.as_bytes());
    put(&mut header[100..108], &format!("{mode:07o}\0"));
    put(&mut header[108..116], "0000000\0");
    put(&mut header[116..124], "0000000\0");
    match size < 1 << 33 {
        true => put(&mut header[124..136], &format!("{size:011o}\0")),
        false => {
            header[124] = 0x80;
            header[128..136].copy_from_slice(&size.to_be_bytes());
        }
    }
    put(&mut header[136..148], "00000000000\0");
    header[156] = kind;
    put(&mut header[257..265], "ustar\x0000");
    put(&mut header[148..156], "        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut header[148..156], &format!("{sum:06o}\0 "));
    Ok(header)
}

fn put(field: &mut [u8], text: &str) {
    field.copy_from_slice(text.as_bytes());
}
