//! Looks at the first bytes of a tunnel: what is said to a host must be meant for that host.

use belljar_spec::Host;
use belljar_spec::egress::DenyReason;
use rustls::server::Acceptor;

use crate::policy::Denial;
use crate::report::cut;

/// No honest greeting is longer.
pub(crate) const MOST_LOOKED_AT: usize = 16 * 1024;
const TLS_PORT: u16 = 443;
const HANDSHAKE: u8 = 0x16;
const TLS_MAJOR: u8 = 3;

/// What has to come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Tls,
    /// The operator listed the port, so whatever is spoken there; but TLS with another host's name is not.
    Anything,
}

impl Due {
    pub(crate) fn at(port: u16) -> Self {
        if port == TLS_PORT { Self::Tls } else { Self::Anything }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It cannot be said yet.
    More,
    Fine,
    Wrong(Denial),
}

/// Is given the bytes as they come, until it knows.
pub(crate) struct Sniffer<'a> {
    host: &'a Host,
    due: Due,
    seen: usize,
    start: [u8; 2],
    acceptor: Acceptor,
}

impl<'a> Sniffer<'a> {
    pub(crate) fn new(host: &'a Host, due: Due) -> Self {
        Self { host, due, seen: 0, start: [0; 2], acceptor: Acceptor::default() }
    }

    pub(crate) fn look(&mut self, bytes: &[u8]) -> Look {
        for (at, byte) in bytes.iter().enumerate().take(2usize.saturating_sub(self.seen)) {
            self.start[self.seen + at] = *byte;
        }
        self.seen += bytes.len();
        let looks_like_tls = match (self.seen, self.start) {
            (0, _) => return Look::More,
            (1, [first, _]) => first == HANDSHAKE,
            (_, start) => start == [HANDSHAKE, TLS_MAJOR],
        };
        match (looks_like_tls, self.due) {
            (true, _) => self.hello(bytes),
            (false, Due::Tls) => not_tls("it does not begin as TLS does"),
            (false, Due::Anything) => Look::Fine,
        }
    }

    /// No more comes.
    pub(crate) fn end(&self) -> Look {
        if self.seen == 0 { Look::Fine } else { not_tls("it ends within the ClientHello") }
    }

    fn hello(&mut self, mut bytes: &[u8]) -> Look {
        while !bytes.is_empty() {
            match self.acceptor.read_tls(&mut bytes) {
                Ok(read) if read > 0 => {}
                _ => return not_tls("the ClientHello is too long"),
            }
        }
        match self.acceptor.accept() {
            Ok(None) if self.seen > MOST_LOOKED_AT => not_tls("the ClientHello is too long"),
            Ok(None) => Look::More,
            Ok(Some(accepted)) => self.named(accepted.client_hello().server_name()),
            Err((error, _)) => not_tls(&error.to_string()),
        }
    }

    /// Of an encrypted ClientHello the outer name counts: it is what everybody on the way sees.
    fn named(&self, name: Option<&str>) -> Look {
        let wrong = |detail: String| {
            Look::Wrong(Denial { reason: DenyReason::NamesDiffer, detail: Some(detail) })
        };
        match name {
            None if self.host.name().is_none() || self.due == Due::Anything => Look::Fine,
            None => wrong("TLS without a server name (SNI)".to_owned()),
            Some(name) if Host::parse(name.as_bytes()).as_ref() == Ok(self.host) => Look::Fine,
            Some(name) => wrong(format!("TLS for the server \"{}\" (SNI)", cut(name))),
        }
    }
}

fn not_tls(why: &str) -> Look {
    Look::Wrong(Denial { reason: DenyReason::NotTls, detail: Some(cut(why)) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
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
        let at_once = Sniffer::new(&host, Due::at(port)).look(bytes);
        let mut slowly = Sniffer::new(&host, Due::at(port));
        let mut by_byte = Look::More;
        for byte in bytes {
            by_byte = slowly.look(std::slice::from_ref(byte));
            if by_byte != Look::More {
                break;
            }
        }
        assert_eq!(std::mem::discriminant(&at_once), std::mem::discriminant(&by_byte));
        match at_once {
            Look::Fine => Ok(()),
            Look::Wrong(denial) => Err(denial.reason),
            Look::More => panic!("it cannot be said"),
        }
    }

    #[test]
    fn the_name_in_tls_is_the_one_that_was_asked_for() {
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
    fn where_tls_is_due_nothing_else_passes() {
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
        // What begins as TLS is read as TLS, or not passed.
        let reason = look("a.example", 22, b"\x16\x03\x01\x00\x05hello");
        assert_eq!(reason, Err(DenyReason::NotTls));
    }

    #[test]
    fn a_greeting_without_end_is_not_read_for_ever() {
        let host = Host::parse(b"a.example").unwrap();
        let mut sniffer = Sniffer::new(&host, Due::Tls);
        // A record of a handshake message that claims to be very long.
        let mut record = vec![HANDSHAKE, TLS_MAJOR, 1, 0x10, 0, 1, 0, 0xff, 0xff];
        record.resize(5 + 0x1000, 0);
        assert_eq!(sniffer.look(&record), Look::More);
        let mut next = vec![HANDSHAKE, TLS_MAJOR, 1, 0x10, 0];
        next.resize(5 + 0x1000, 0);
        let mut rounds = 1;
        while sniffer.look(&next) == Look::More {
            rounds += 1;
            assert!(rounds < 10);
        }
        assert!(matches!(sniffer.end(), Look::Wrong(_)));
        assert_eq!(Sniffer::new(&host, Due::Tls).end(), Look::Fine);
    }

    fn settle(host: &Host, due: Due, pieces: &[&[u8]]) -> Look {
        let mut sniffer = Sniffer::new(host, due);
        for piece in pieces {
            match sniffer.look(piece) {
                Look::More => {}
                known => return known,
            }
        }
        sniffer.end()
    }

    proptest::proptest! {
        /// Nor does it matter where the network cuts it.
        #[test]
        fn no_bytes_confuse_it(
            noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            start in proptest::sample::select(vec![0, 1, 2, 5, 9, 60, 120]),
            cut in 0_usize..200,
            tls in proptest::prelude::any::<bool>(),
        ) {
            let host = Host::parse(b"a.example").unwrap();
            let due = if tls { Due::Tls } else { Due::Anything };
            let mut bytes = hello("a.example");
            bytes.truncate(start);
            bytes.extend(noise);
            let cut = cut.min(bytes.len());
            let whole = settle(&host, due, &[&bytes]);
            let (one, other) = bytes.split_at(cut);
            let cut = settle(&host, due, &[one, other]);
            proptest::prop_assert_eq!(whole == Look::Fine, cut == Look::Fine);
        }
    }
}
