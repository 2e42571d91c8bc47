//! Rules on hosts, and what they say: a rule prints and reads back the same, and what one covers it allows. Run:
//! `cargo +nightly fuzz run rules`.
#![no_main]

use belljar_spec::host_rule::{HostPattern, Seen, USUAL_PORTS, is_plain_path};
use belljar_spec::{Host, HostRule};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut words = text.split('\n');
    let (mine, theirs) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (Ok(mine), theirs) = (HostRule::parse(mine), HostRule::parse(theirs)) else { return };
    assert_eq!(HostRule::parse(&mine.to_string()).as_ref(), Ok(&mine));
    assert!(mine.covers(&mine));
    asked(&mine, words.next().unwrap_or("a.example"), words.next().unwrap_or("/"));
    if let Ok(theirs) = theirs
        && mine.covers(&theirs)
    {
        within(&mine, &theirs);
    }
});

/// A path that can be read in two ways is below no rule's path.
fn asked(rule: &HostRule, host: &str, path: &str) {
    let Ok(host) = Host::parse(host.as_bytes()) else { return };
    for port in [22, 80, 443, rule.port.unwrap_or(443)] {
        let seen = Seen::Request { method: "GET", path };
        if rule.allows(&host, port, seen) && rule.path.is_some() {
            assert!(is_plain_path(path));
        }
        if rule.allows(&host, port, Seen::Nothing) {
            assert!(!rule.looks_inside());
            assert!(rule.allows(&host, port, seen));
        }
        if rule.hosts == HostPattern::Any {
            assert!(host.name().is_some() || !rule.allows(&host, port, seen));
        }
    }
}

/// Whatever the narrower rule allows, the wider one does.
fn within(wider: &HostRule, narrower: &HostRule) {
    let host = match &narrower.hosts {
        HostPattern::Any => Host::parse(b"any.example").ok(),
        HostPattern::Below(suffix) => Host::parse(format!("a.{suffix}").as_bytes()).ok(),
        HostPattern::Host(host) => Some(host.clone()),
    };
    let Some(host) = host else { return }; // a suffix that is as long as a name can be
    let ports: Vec<u16> = narrower.port.map_or(USUAL_PORTS.to_vec(), |port| vec![port]);
    let method = narrower.methods.first().map_or("GET", String::as_str);
    let path = narrower.path.as_deref().unwrap_or("/");
    for port in ports {
        for seen in [Seen::Nothing, Seen::Request { method, path }] {
            if narrower.allows(&host, port, seen) {
                assert!(wider.allows(&host, port, seen), "{wider} does not allow {host}:{port}");
            }
        }
    }
}
