//! Changes of the list, with a real proxy in a thread, and with some that do not do as they are told.

use std::os::fd::AsFd;
use std::path::Path;

use belljar_egress::control::{FromProxy, ToProxy, receive, send};
use belljar_spec::EventKind;
use belljar_spec::network_list::{NetworkAccess, NetworkChange, NetworkList, StartingNetwork};
use belljar_spec::wire::control::ControlError;

use super::AfterSetup;
use super::tests::proxy;
use super::tests_narrow::{TestSandbox, outside, serving};

fn set(hosts: &[&String]) -> NetworkChange {
    let set = Some(hosts.iter().map(|host| (*host).clone()).collect());
    NetworkChange { set, ..NetworkChange::default() }
}

impl TestSandbox {
    fn with_list(mut self, setup: &str, allow: &[&str]) -> Self {
        let allow: Vec<String> = allow.iter().map(|host| (*host).to_owned()).collect();
        let start = StartingNetwork { allow: allow.clone(), ..StartingNetwork::default() };
        let setup = Some(vec![setup.to_owned()]);
        let list = NetworkList { allow, setup, ..NetworkList::default() };
        self.network = std::mem::take(&mut self.network).with_list(start, list);
        self
    }

    fn change(&mut self, change: &NetworkChange, system: &Path) -> Result<u64, ControlError> {
        let Self { network, wire, record, .. } = self;
        let mux = Some(&mut wire.ours);
        network.change_list(change, system, mux, &mut record.recorder).unwrap()
    }
}

#[test]
fn to_widen_is_bound_by_the_ceiling_and_to_narrow_is_not() {
    let (one, other) = (outside(), outside());
    let system = tempfile::tempdir().unwrap();
    let mut inside =
        TestSandbox::new(serving(&one, &[&one]), AfterSetup::OwnRules).with_list(&one, &[&one]);
    inside.narrow();
    std::fs::write(system.path().join("policy.toml"), "[network]\nallow = ['x.example']\n")
        .unwrap();
    let refused = inside.change(&set(&[&one, &other]), system.path()).unwrap_err().to_string();
    assert!(refused.contains("exceeds the ceiling") && refused.contains(&other), "{refused}");
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 403"));
    // What it has is beyond the ceiling as well, and need not be given up to narrow the rest.
    assert_eq!(inside.change(&set(&[&one]), system.path()), Ok(0));
    assert_eq!(inside.change(&set(&[]), system.path()), Ok(0));
    assert!(inside.ask(&one).1.starts_with("HTTP/1.1 403"));
    assert!(inside.change(&set(&[&one]), system.path()).is_err());
    std::fs::write(system.path().join("policy.toml"), "no ceiling").unwrap();
    let unread = inside.change(&set(&[&one]), system.path()).unwrap_err().to_string();
    assert!(unread.contains("policy.toml"), "{unread}");
    std::fs::remove_file(system.path().join("policy.toml")).unwrap();
    assert_eq!(inside.change(&set(&[&other]), system.path()), Ok(0));
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 200"));
    let kinds = inside.record.kinds();
    let changes = kinds.iter().filter(|kind| **kind == EventKind::NetworkChanged).count();
    assert_eq!(
        changes, 2,
        "a refused change, and one that changes nothing, are no events: {kinds:?}"
    );
}

#[test]
fn a_host_that_was_added_during_the_set_up_keeps_the_proxy() {
    let (one, other) = (outside(), outside());
    let system = tempfile::tempdir().unwrap();
    let mut inside = TestSandbox::new(serving(&one, &[]), AfterSetup::Nothing).with_list(&one, &[]);
    let allow = NetworkChange { allow: vec![other.clone()], ..NetworkChange::default() };
    assert_eq!(inside.change(&allow, system.path()), Ok(0));
    assert!(inside.ask(&one).1.starts_with("HTTP/1.1 200"));
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 403"));
    inside.narrow();
    assert!(inside.ask(&one).1.starts_with("HTTP/1.1 403"));
    assert!(inside.ask(&other).1.starts_with("HTTP/1.1 200"));
    assert_eq!(inside.network.list().setup, None);
}

#[test]
fn without_a_proxy_nothing_is_changed() {
    let one = outside();
    let mut inside = TestSandbox::new(serving(&one, &[]), AfterSetup::Nothing).with_list(&one, &[]);
    inside.narrow();
    assert_eq!(inside.network.access(), NetworkAccess::None);
    let refused = inside.change(&set(&[&one]), Path::new("/nonexistent")).unwrap_err();
    assert!(refused.to_string().contains("without network access"), "{refused}");
}

#[test]
fn the_event_is_on_disk_before_the_proxy_is_told_and_a_proxy_that_does_not_answer_is_ended() {
    let (silent, end) = proxy();
    let pid = silent.pid();
    let mut inside =
        TestSandbox::new(silent, AfterSetup::OwnRules).with_list("a.example", &["a.example"]);
    let log = inside.record.log();
    let seen = std::thread::spawn(move || {
        loop {
            match receive::<ToProxy>(&end).unwrap() {
                Some((ToProxy::ChangeList(list), _)) => {
                    let recorded = std::fs::read_to_string(&log).unwrap();
                    return (end, list.allow, recorded);
                }
                Some(_) => {}
                None => panic!("it was not told"),
            }
        }
    });
    let changed = inside.change(&set(&[&"b.example".to_owned()]), Path::new("/nonexistent"));
    assert!(matches!(changed, Err(ControlError::NetworkLost { .. })), "{changed:?}");
    let (end, told, recorded) = seen.join().unwrap();
    assert_eq!(told, ["b.example"]);
    assert!(recorded.contains("network.changed") && recorded.contains("b.example"), "{recorded}");
    assert!(inside.network.proxy.is_none());
    assert_eq!(inside.network.access(), NetworkAccess::Lost);
    assert!(rustix::process::test_kill_process(pid).is_err(), "the process lives");
    assert_eq!(inside.record.kinds(), [EventKind::NetworkChanged, EventKind::EgressLost]);
    drop(end);
}

#[test]
fn an_unexpected_answer_ends_the_proxy() {
    let (strange, end) = proxy();
    let mut inside =
        TestSandbox::new(strange, AfterSetup::OwnRules).with_list("a.example", &["a.example"]);
    send(end.as_fd(), &FromProxy::Narrowed { closed: 0 }, None).unwrap();
    let changed = inside.change(&set(&[]), Path::new("/nonexistent"));
    assert!(matches!(changed, Err(ControlError::NetworkLost { .. })), "{changed:?}");
    assert!(inside.network.proxy.is_none());
}
