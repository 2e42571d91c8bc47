//! Checks the first bytes of a tunnel: TLS where it is expected, with the server name (SNI) of the tunnel's host.

use belljar_spec::Host;
use belljar_spec::egress::DenyReason;
use rustls::server::Acceptor;

use crate::policy::Denial;
use crate::report::shorten;

/// No honest ClientHello is longer.
const MAX_CLIENT_HELLO: usize = 16 * 1024;
const TLS_PORT: u16 = 443;
/// The first byte of a TLS record with a handshake message.
pub(super) const TLS_HANDSHAKE: u8 = 0x16;
const TLS_MAJOR: u8 = 3;

/// Which protocol the first bytes must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Tls,
    /// The operator listed the port, so any protocol; but TLS with another host's name is denied.
    Anything,
}

impl Expected {
    pub(crate) fn at(port: u16) -> Self {
        if port == TLS_PORT { Self::Tls } else { Self::Anything }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SniffResult {
    /// More bytes are needed.
    NeedMore,
    Allowed,
    Denied(Denial),
}

/// Gets the bytes as they arrive, until it has a result.
pub(crate) struct Sniffer<'a> {
    host: &'a Host,
    expected: Expected,
    seen: usize,
    start: [u8; 2],
    acceptor: Acceptor,
}

impl<'a> Sniffer<'a> {
    pub(crate) fn new(host: &'a Host, expected: Expected) -> Self {
        Self { host, expected, seen: 0, start: [0; 2], acceptor: Acceptor::default() }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) -> SniffResult {
        for (at, byte) in bytes.iter().enumerate().take(2usize.saturating_sub(self.seen)) {
            self.start[self.seen + at] = *byte;
        }
        self.seen += bytes.len();
        let looks_like_tls = match (self.seen, self.start) {
            (0, _) => return SniffResult::NeedMore,
            (1, [first, _]) => first == TLS_HANDSHAKE,
            (_, start) => start == [TLS_HANDSHAKE, TLS_MAJOR],
        };
        match (looks_like_tls, self.expected) {
            (true, _) => self.hello(bytes),
            (false, Expected::Tls) => denied_not_tls("it does not begin as TLS does"),
            (false, Expected::Anything) => SniffResult::Allowed,
        }
    }

    /// The client sends no more.
    pub(crate) fn finish(&self) -> SniffResult {
        if self.seen == 0 {
            SniffResult::Allowed
        } else {
            denied_not_tls("it ends in the middle of the ClientHello")
        }
    }

    fn hello(&mut self, mut bytes: &[u8]) -> SniffResult {
        while !bytes.is_empty() {
            match self.acceptor.read_tls(&mut bytes) {
                Ok(read) if read > 0 => {}
                _ => return denied_not_tls("the ClientHello is too long"),
            }
        }
        match self.acceptor.accept() {
            Ok(None) if self.seen > MAX_CLIENT_HELLO => {
                denied_not_tls("the ClientHello is too long")
            }
            Ok(None) => SniffResult::NeedMore,
            Ok(Some(accepted)) => self.check_server_name(accepted.client_hello().server_name()),
            Err((error, _)) => denied_not_tls(&error.to_string()),
        }
    }

    /// Of an encrypted ClientHello the outer name counts: it is the one that the network sees.
    fn check_server_name(&self, name: Option<&str>) -> SniffResult {
        let wrong = |detail: String| {
            SniffResult::Denied(Denial { reason: DenyReason::NamesDiffer, detail: Some(detail) })
        };
        match name {
            None if self.host.name().is_none() || self.expected == Expected::Anything => {
                SniffResult::Allowed
            }
            None => wrong("TLS without a server name (SNI)".to_owned()),
            Some(name) if Host::parse(name.as_bytes()).as_ref() == Ok(self.host) => {
                SniffResult::Allowed
            }
            Some(name) => wrong(format!("TLS for the server \"{}\" (SNI)", shorten(name))),
        }
    }
}

fn denied_not_tls(why: &str) -> SniffResult {
    SniffResult::Denied(not_tls(why))
}

pub(super) fn not_tls(why: &str) -> Denial {
    Denial { reason: DenyReason::NotTls, detail: Some(shorten(why)) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    fn look(host: &str, port: u16, bytes: &[u8]) -> Result<(), DenyReason> {
        let host = Host::parse(host.as_bytes()).unwrap();
        let at_once = Sniffer::new(&host, Expected::at(port)).feed(bytes);
        let mut slowly = Sniffer::new(&host, Expected::at(port));
        let mut by_byte = SniffResult::NeedMore;
        for byte in bytes {
            by_byte = slowly.feed(std::slice::from_ref(byte));
            if by_byte != SniffResult::NeedMore {
                break;
            }
        }
        assert_eq!(std::mem::discriminant(&at_once), std::mem::discriminant(&by_byte));
        match at_once {
            SniffResult::Allowed => Ok(()),
            SniffResult::Denied(denial) => Err(denial.reason),
            SniffResult::NeedMore => panic!("it is not decided"),
        }
    }

    #[test]
    fn the_server_name_must_be_the_tunnels_host() {
        assert_eq!(look("a.example", 443, &hello("a.example")), Ok(()));
        assert_eq!(look("a.example", 443, &hello("A.Example")), Ok(()));
        assert_eq!(look("a.example", 443, &hello("b.example")), Err(DenyReason::NamesDiffer));
        assert_eq!(look("a.example", 8443, &hello("b.example")), Err(DenyReason::NamesDiffer));
        assert_eq!(look("10.0.0.1", 443, &hello("b.example")), Err(DenyReason::NamesDiffer));
        // A client sends no name for an address.
        assert_eq!(look("10.0.0.1", 443, &hello("10.0.0.1")), Ok(()));
        assert_eq!(look("a.example", 443, &hello("10.0.0.1")), Err(DenyReason::NamesDiffer));
        assert_eq!(look("a.example", 8443, &hello("10.0.0.1")), Ok(()));
    }

    #[test]
    fn where_tls_is_expected_nothing_else_passes() {
        for other in [
            &b"SSH-2.0-OpenSSH_9.6\r\n"[..],
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x80\x2e\x01\x03\x01",
            b"\x16\x02\x00\x00\x01x",
            b"\x16\x03\x01\x00\x05hello",
            b"\x16\x03\x01\xff\xffhello",
            b"\0",
        ] {
            assert_eq!(look("a.example", 443, other), Err(DenyReason::NotTls), "{other:?}");
        }
        assert_eq!(look("a.example", 22, b"SSH-2.0-OpenSSH_9.6\r\n"), Ok(()));
        assert_eq!(look("a.example", 22, b"\x16\x02"), Ok(()));
        // What starts as TLS is parsed as TLS, or denied.
        let reason = look("a.example", 22, b"\x16\x03\x01\x00\x05hello");
        assert_eq!(reason, Err(DenyReason::NotTls));
    }

    #[test]
    fn an_endless_client_hello_is_denied() {
        let host = Host::parse(b"a.example").unwrap();
        let mut sniffer = Sniffer::new(&host, Expected::Tls);
        // A record of a handshake message that claims to be very long.
        let mut record = vec![TLS_HANDSHAKE, TLS_MAJOR, 1, 0x10, 0, 1, 0, 0xff, 0xff];
        record.resize(5 + 0x1000, 0);
        assert_eq!(sniffer.feed(&record), SniffResult::NeedMore);
        let mut next = vec![TLS_HANDSHAKE, TLS_MAJOR, 1, 0x10, 0];
        next.resize(5 + 0x1000, 0);
        let mut rounds = 1;
        while sniffer.feed(&next) == SniffResult::NeedMore {
            rounds += 1;
            assert!(rounds < 10);
        }
        assert!(matches!(sniffer.finish(), SniffResult::Denied(_)));
        assert_eq!(Sniffer::new(&host, Expected::Tls).finish(), SniffResult::Allowed);
    }

    fn sniff_all(host: &Host, expected: Expected, pieces: &[&[u8]]) -> SniffResult {
        let mut sniffer = Sniffer::new(host, expected);
        for piece in pieces {
            match sniffer.feed(piece) {
                SniffResult::NeedMore => {}
                known => return known,
            }
        }
        sniffer.finish()
    }

    proptest::proptest! {
        /// Splitting the bytes does not change the result.
        #[test]
        fn splitting_the_bytes_does_not_change_the_result(
            noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            start in proptest::sample::select(vec![0, 1, 2, 5, 9, 60, 120]),
            cut in 0_usize..200,
            tls in proptest::prelude::any::<bool>(),
        ) {
            let host = Host::parse(b"a.example").unwrap();
            let expected = if tls { Expected::Tls } else { Expected::Anything };
            let mut bytes = hello("a.example");
            bytes.truncate(start);
            bytes.extend(noise);
            let cut = cut.min(bytes.len());
            let whole = sniff_all(&host, expected, &[&bytes]);
            let (one, other) = bytes.split_at(cut);
            let split = sniff_all(&host, expected, &[one, other]);
            proptest::prop_assert_eq!(whole == SniffResult::Allowed, split == SniffResult::Allowed);
        }
    }
}
