//! Removes the headers that a container engine puts around the bytes of PID 1.
//! Each packet begins with the number of the stream and the length.

use belljar_spec::wire::WireError;

const HEAD: usize = 8;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
/// Errors of the engine itself.
const ENGINE: u8 = 3;
/// Of the diagnostic stream of PID 1, which never has much.
const MAX_DIAGNOSTICS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Packets {
    head: Vec<u8>,
    stream: u8,
    left: usize,
    diagnostics: Vec<u8>,
}

impl Packets {
    /// Hands on what was on PID 1's channel. The engine is not hostile, but it can be broken.
    pub(super) fn unwrap(
        &mut self,
        mut bytes: &[u8],
        mut channel: impl FnMut(&[u8]),
    ) -> Result<(), WireError> {
        while !bytes.is_empty() {
            if self.left == 0 {
                let missing = (HEAD - self.head.len()).min(bytes.len());
                self.head.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if let [stream, 0, 0, 0, length @ ..] = self.head.as_slice()
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    (self.stream, self.left) = (*stream, u32::from_be_bytes(length) as usize);
                    self.head.clear();
                } else if self.head.len() == HEAD {
                    return Err(super::channel::protocol_violation(
                        "the engine's packets make no sense",
                    ));
                }
                continue;
            }
            let (piece, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= piece.len();
            bytes = rest;
            match self.stream {
                STDOUT => channel(piece),
                STDERR | ENGINE => {
                    let room = MAX_DIAGNOSTICS.saturating_sub(self.diagnostics.len());
                    self.diagnostics.extend_from_slice(&piece[..piece.len().min(room)]);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Escaped: it may be shown.
    pub(super) fn diagnostics(&self) -> Option<String> {
        let diagnostics = self.diagnostics.trim_ascii();
        (!diagnostics.is_empty()).then(|| belljar_spec::text::escape(diagnostics))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(stream: u8, bytes: &[u8]) -> Vec<u8> {
        [&[stream, 0, 0, 0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    #[test]
    fn pieces_of_any_size_give_the_same() {
        let all =
            [packet(1, b"one"), packet(2, b"oh\n"), packet(1, b""), packet(1, b"two")].concat();
        for size in 1..all.len() + 1 {
            let (mut packets, mut got) = (Packets::default(), Vec::new());
            for piece in all.chunks(size) {
                packets.unwrap(piece, |bytes| got.extend_from_slice(bytes)).unwrap();
            }
            assert_eq!(got, b"onetwo", "{size}");
            assert_eq!(packets.diagnostics().as_deref(), Some("oh"));
        }
    }

    #[test]
    fn what_is_no_head_is_an_error() {
        assert!(Packets::default().unwrap(b"HTTP/1.1", |_| ()).is_err());
    }
}
