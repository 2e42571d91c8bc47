//! The first bytes of a tunnel: whatever they are, never a panic, and the same verdict however they are cut. Run:
//! `cargo +nightly fuzz run tunnel`.
#![no_main]

use belljar_egress::fuzzing::sniff;
use belljar_spec::Host;
use libfuzzer_sys::fuzz_target;

/// How a ClientHello begins, so that not every input has to find it.
const RECORD: [u8; 3] = [0x16, 3, 1];

fuzz_target!(|data: &[u8]| {
    let Some(([mode, piece], rest)) = data.split_first_chunk() else { return };
    let mut bytes = if mode & 1 == 0 { Vec::new() } else { RECORD.to_vec() };
    bytes.extend(rest);
    let port = if mode & 2 == 0 { 443 } else { 8443 };
    for host in [&b"a.example"[..], b"10.0.0.1"] {
        let Ok(host) = Host::parse(host) else { return };
        let at_once = sniff(&host, port, &bytes, bytes.len());
        let in_pieces = sniff(&host, port, &bytes, usize::from(*piece));
        assert_eq!(at_once, in_pieces);
        if at_once == Some(true) && port == 443 {
            assert_eq!(bytes.first(), Some(&0x16), "nothing but TLS passes there");
        }
    }
});
