//! Each difference between an attestation and the expectation is found.

use super::*;

fn expected() -> Expectation {
    Expectation {
        user: User { uid: 1000, gid: 1000 },
        uid_map: None,
        gid_map: None,
        kernel: ExpectedKernel::Any,
        groups: Vec::new(),
        mounts: Vec::new(),
        tolerated: Vec::new(),
        private_mounts: false,
        apart_from: BTreeMap::new(),
        sizes: Vec::new(),
        dies_with_launcher: false,
        init: None,
        hostname: None,
        seccomp_filters: 1,
        landlock: 0,
        rlimits: [("core".to_owned(), 1)].into(),
        environment: vec![OsText::from("HOME")],
        writable: Vec::new(),
    }
}

fn good() -> BriefAttestation {
    let ids = Ids { real: 1000, effective: 1000, saved: 1000 };
    let pipe = |number| SeenDescriptor { number, refers_to: OsText::from("pipe:[1]") };
    BriefAttestation {
        uids: ids,
        gids: ids,
        groups: Vec::new(),
        capabilities: CapabilitySets::default(),
        no_new_privileges: true,
        seccomp_mode: 2,
        seccomp_filters: 1,
        descriptors: vec![pipe(0), pipe(1), pipe(2)],
        rlimits: [("core".to_owned(), 1)].into(),
        environment: vec![OsText::from("TERM")],
    }
}

#[test]
fn a_short_attestation_is_compared_with_the_command_s_own_environment() {
    let environment = [OsText::from("TERM")];
    assert_eq!(expected().compare_brief(&good(), &environment), Vec::<String>::new());
    assert_eq!(expected().compare_brief(&good(), &[]).len(), 1);
}

#[test]
fn each_thing_that_a_short_attestation_says_is_looked_at() {
    type Change = fn(&mut BriefAttestation);
    let changes: [Change; 9] = [
        |seen| seen.uids.saved = 0,
        |seen| seen.gids.real = 0,
        |seen| seen.groups.push(27),
        |seen| seen.capabilities.bounding = 1,
        |seen| seen.no_new_privileges = false,
        |seen| seen.seccomp_mode = 0,
        |seen| seen.seccomp_filters = 0,
        |seen| seen.descriptors[2].number = 3,
        |seen| seen.rlimits.clear(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut seen = good();
        change(&mut seen);
        let wrong = expected().compare_brief(&seen, &[OsText::from("TERM")]);
        assert_eq!(wrong.len(), 1, "change {at}: {wrong:?}");
    }
}

/// What is promised by a namespace, a size, Landlock or the end with the launcher.
fn promised() -> (Expectation, Attestation) {
    let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let tmp = OsText::from("/tmp");
    let expectation = Expectation {
        apart_from: one("net", "net:[1]"),
        sizes: vec![(tmp.clone(), 1 << 20)],
        private_mounts: true,
        dies_with_launcher: true,
        init: Some(InitState { own_session: true, capabilities: 0 }),
        hostname: Some("belljar".to_owned()),
        landlock: 3,
        mounts: vec![ExpectedMount {
            target: tmp.clone(),
            identity: None,
            fstype: Some("tmpfs".to_owned()),
            read_only: false,
            devices: false,
            suid: false,
        }],
        ..expected()
    };
    let short = good();
    let attestation = Attestation {
        pid: 2,
        parent: 1,
        kernel: String::new(),
        uids: short.uids,
        gids: short.gids,
        groups: short.groups,
        uid_map: String::new(),
        gid_map: String::new(),
        capabilities: short.capabilities,
        no_new_privileges: true,
        seccomp_mode: 2,
        seccomp_filters: 1,
        landlock: 3,
        namespaces: one("net", "net:[2]"),
        dies_with_launcher: true,
        init: InitState { own_session: true, capabilities: 0 },
        hostname: "belljar".to_owned(),
        mounts: vec![SeenMount {
            target: tmp,
            fstype: "tmpfs".to_owned(),
            device: 1,
            inode: 1,
            read_only: false,
            nosuid: true,
            nodev: true,
            propagates: false,
            size: Some(1 << 20),
            covered: false,
        }],
        interfaces: vec!["lo".to_owned()],
        descriptors: short.descriptors,
        rlimits: short.rlimits,
        environment: vec![OsText::from("HOME")],
        wrote: Vec::new(),
        attempts: vec![crate::attest::Attempt {
            call: "set the setuid bit".to_owned(),
            answer: AttemptResult::Errno(EPERM),
        }],
    };
    (expectation, attestation)
}

#[test]
fn each_mechanism_that_a_posture_names_is_looked_at() {
    const EBADF: i32 = 9;
    type Change = fn(&mut Attestation);
    let changes: [Change; 14] = [
        |seen| seen.mounts[0].covered = true,
        |seen| seen.namespaces.clear(),
        |seen| drop(seen.namespaces.insert("net".to_owned(), "net:[1]".to_owned())),
        |seen| seen.dies_with_launcher = false,
        |seen| seen.init.own_session = false,
        |seen| seen.init.capabilities = 1,
        |seen| seen.hostname = "host".to_owned(),
        |seen| seen.landlock = 0,
        |seen| seen.mounts[0].size = Some(2 << 20),
        |seen| seen.mounts[0].size = None,
        |seen| seen.mounts[0].nosuid = false,
        |seen| seen.mounts[0].propagates = true,
        |seen| seen.rlimits.clear(),
        // The filter would have answered first.
        |seen| seen.attempts[0].answer = AttemptResult::Errno(EBADF),
    ];
    let (expectation, good) = promised();
    assert_eq!(expectation.compare(&good), Vec::<String>::new());
    for (at, change) in changes.into_iter().enumerate() {
        let mut seen = good.clone();
        change(&mut seen);
        let wrong = expectation.compare(&seen);
        assert_eq!(wrong.len(), 1, "change {at}: {wrong:?}");
    }
}
