//! Names and addresses of hosts, as anybody inside can write them: read into one form or refused, never a panic,
//! and the form reads back as itself. Run: `cargo +nightly fuzz run host`.
#![no_main]

use std::net::IpAddr;

use belljar_spec::Host;
use belljar_spec::egress::PublishSpec;
use belljar_spec::host::{parse_authority, parse_port};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(host) = Host::parse(data) {
        check(&host);
    }
    if let Ok((host, port)) = parse_authority(data) {
        check(&host);
        assert_ne!(port, Some(0));
        if let Some(port) = port {
            let spelled = format!("{host}:{port}");
            assert_eq!(parse_authority(spelled.as_bytes()), Ok((host, Some(port))));
        }
    }
    let _ = parse_port(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = PublishSpec::parse(text);
    }
});

/// There is no second reading of it.
fn check(host: &Host) {
    let spelled = host.to_string();
    assert_eq!(Host::parse(spelled.as_bytes()).as_ref(), Ok(host));
    match host {
        Host::Name(name) => {
            assert_eq!(*name, spelled);
            assert!(name.parse::<IpAddr>().is_err(), "an address is no name");
            let plain = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte)
            };
            assert!(name.bytes().all(plain) && !name.ends_with('.') && name.len() <= 253);
        }
        Host::Address(address) => assert_eq!(address.to_canonical(), *address),
    }
    assert!(!host.is_below(&spelled));
}
