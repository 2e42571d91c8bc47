//! Every step on made-up machines, whose files lie below a directory of the test.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tempfile::TempDir;

use super::*;

/// A machine that needs every step, on cgroup v2 with systemd.
struct MadeUp {
    directory: TempDir,
    mounts: &'static str,
}

const UNIFIED: &str = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const V1: &str = "31 1 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  32 1 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  33 1 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                  34 1 0:32 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
                  35 1 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

const HYBRID_READ_ONLY: &str = "31 1 0:29 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
     33 1 0:31 / /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n\
     35 1 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
const HYBRID_PARTLY_READ_ONLY: &str = "31 1 0:29 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
     33 1 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
     35 1 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

impl MadeUp {
    fn new(mounts: &'static str) -> Self {
        let made = Self { directory: tempfile::tempdir().unwrap(), mounts };
        // The owner of what is made has to be the one who runs the test: only root can give files away.
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        made.write(
            "/etc/passwd",
            &format!("root:x:0:0::/:/bin/sh\nann:x:{uid}:{gid}::/home/ann:/bin/sh\n"),
        );
        made.write("/etc/subuid", "bob:100000:65536");
        for place in ["cpu,cpuacct", "memory", "pids", "freezer"] {
            fs::create_dir_all(made.path(&format!("/sys/fs/cgroup/{place}"))).unwrap();
        }
        made
    }

    fn path(&self, path: &str) -> PathBuf {
        files::below(self.directory.path(), Path::new(path))
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), content).unwrap();
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    fn machine(&self) -> Machine {
        self.machine_for("/usr/local/bin/belljar")
    }

    fn machine_for(&self, executable: &str) -> Machine {
        self.machine_of("ann", executable)
    }

    fn machine_of(&self, user: &str, executable: &str) -> Machine {
        let passwd = self.text("/etc/passwd").unwrap();
        let ids: Vec<u32> = passwd
            .lines()
            .nth(1)
            .unwrap()
            .split(':')
            .filter_map(|field| field.parse().ok())
            .collect();
        let account = Account { name: user.to_owned(), uid: ids[0], gid: ids[1] };
        let mounts = MountTable::parse(self.mounts.as_bytes());
        Machine::at(self.directory.path().to_owned(), account, executable.into(), mounts).unwrap()
    }

    fn state(&self, step: &str) -> StepState {
        self.machine().examine().into_iter().find(|found| found.name == step).unwrap().state
    }

    fn undo(&self) -> UndoReport {
        Journal::undo_at(self.directory.path(), Undo::All).unwrap()
    }

    fn undo_of(&self, user: &str) -> UndoReport {
        Journal::undo_at(self.directory.path(), Undo::OnlyOf(user)).unwrap()
    }

    fn like_ubuntu(self) -> Self {
        self.write("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
        self.write("/usr/sbin/apparmor_parser", "");
        self.write("/run/systemd/system/here", "");
        self
    }
}

fn states(steps: &[StepReport]) -> Vec<StepState> {
    steps.iter().map(|step| step.state).collect()
}

#[test]
fn a_machine_with_systemd_is_set_up_once_and_undone() {
    use StepState::{Made, Ready};
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    made.write("/proc/sys/user/max_user_namespaces", "0\n");
    let examined = made.machine().examine();
    assert_eq!(states(&examined), [StepState::Needed; 4]);
    assert!(made.text("/etc/apparmor.d/belljar").is_none(), "looking changes nothing");
    let commands: Vec<&String> = examined.iter().flat_map(|step| &step.commands).collect();
    assert!(
        commands.iter().any(|line| *line == "echo 'ann:165536:65536' | sudo tee -a /etc/subuid")
    );
    assert!(commands.iter().any(|line| *line == "sudo /usr/sbin/apparmor_parser --replace /etc/apparmor.d/belljar"));

    assert_eq!(states(&made.machine().set_up().unwrap()), [Made; 4]);
    assert_eq!(made.text("/etc/subuid").unwrap(), "bob:100000:65536\nann:165536:65536\n");
    assert_eq!(made.text("/etc/subgid").unwrap(), "ann:165536:65536\n");
    assert_eq!(made.text("/proc/sys/user/max_user_namespaces").unwrap(), "15000");
    let drop_in = made.text("/etc/systemd/system/user@.service.d/90-belljar.conf").unwrap();
    assert!(drop_in.contains("[Service]\nDelegate=cpu memory pids\n"), "{drop_in}");
    let profile = made.text("/etc/apparmor.d/belljar").unwrap();
    assert!(profile.contains("profile belljar \"/usr/local/bin/belljar\""), "{profile}");
    let journal = fs::metadata(made.path("/var/lib/belljar/setup.json")).unwrap();
    assert_eq!(journal.mode() & 0o777, 0o644);
    assert_eq!(
        states(&made.machine().set_up().unwrap()),
        [Ready; 4],
        "the second time there is nothing to do"
    );

    let undone = made.undo();
    assert_eq!(undone.left, []);
    assert_eq!(made.text("/etc/subuid").unwrap(), "bob:100000:65536\n");
    assert_eq!(made.text("/proc/sys/user/max_user_namespaces").unwrap(), "0");
    for gone in [
        "/etc/apparmor.d/belljar",
        "/etc/sysctl.d/90-belljar.conf",
        "/etc/systemd/system/user@.service.d/90-belljar.conf",
        "/var/lib/belljar/setup.json",
    ] {
        assert!(made.text(gone).is_none(), "{gone}");
    }
    assert_eq!(made.undo(), UndoReport::default());
    assert_eq!(states(&made.machine().examine()), [StepState::Needed; 4]);
}

/// `cat` relies on what was made when `ann` was set up, and the list has nothing of it that is his.
#[test]
fn undoing_one_users_part_keeps_what_holds_for_the_whole_machine() {
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    made.machine().set_up().unwrap();
    let second = made.machine_of("cat", "/usr/local/bin/belljar").set_up().unwrap();
    use StepState::{Made, Ready};
    assert_eq!(states(&second), [Ready, Ready, Made, Ready]);
    let undone = made.undo_of("ann");
    let drop_in = "/etc/systemd/system/user@.service.d/90-belljar.conf";
    let wide = [drop_in, "/etc/apparmor.d/belljar"];
    assert_eq!(undone.kept, wide, "{undone:?}");
    assert_eq!(undone.removed, ["/etc/subgid", "/etc/subuid"], "{undone:?}");
    assert_eq!(undone.left, []);
    for path in wide {
        assert!(made.text(path).is_some(), "{path}");
    }
    assert_eq!(made.text("/etc/subgid").unwrap(), "cat:231072:65536\n");
    // Without a user all of it goes: what was kept, and what is the other's.
    let undone = made.undo();
    assert_eq!((undone.kept.len(), undone.left.len()), (0, 0), "{undone:?}");
    for path in wide {
        assert!(made.text(path).is_none(), "{path}");
    }
    assert_eq!(made.text("/etc/subgid").unwrap(), "");
    assert!(made.text("/var/lib/belljar/setup.json").is_none());
}

#[test]
fn two_setups_at_once_take_turns_and_both_are_listed() {
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    // Both have looked at the machine before either changes it.
    let mut first = made.machine();
    let mut second = made.machine_of("cat", "/usr/local/bin/belljar");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| second.set_up().unwrap());
        first.set_up().unwrap();
        other.join().unwrap();
    });
    let ids = made.text("/etc/subuid").unwrap();
    assert!(ids.contains("ann:") && ids.contains("cat:"), "{ids}");
    let journal = made.text("/var/lib/belljar/setup.json").unwrap();
    assert!(journal.contains("\"ann\"") && journal.contains("\"cat\""), "{journal}");
    assert_eq!(made.undo().left, []);
    assert_eq!(made.text("/etc/subuid").unwrap(), "bob:100000:65536\n");
}

#[test]
fn a_setup_that_another_one_holds_up_says_so() {
    let made = MadeUp::new(UNIFIED);
    let root = made.directory.path();
    let held = files::SetupLock::take(root).unwrap();
    let refused = files::SetupLock::take_within(root, std::time::Duration::ZERO).unwrap_err();
    assert!(refused.to_string().contains("another belljar setup is changing"), "{refused}");
    drop(held);
    files::SetupLock::take_within(root, std::time::Duration::ZERO).unwrap();
}

#[test]
fn a_file_that_was_edited_is_left_and_named() {
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    made.machine().set_up().unwrap();
    let profile = made.text("/etc/apparmor.d/belljar").unwrap();
    made.write("/etc/apparmor.d/belljar", &format!("{profile}# mine\n"));
    let undone = made.undo();
    assert_eq!(undone.left.len(), 1, "{undone:?}");
    assert_eq!(undone.left[0].what, "/etc/apparmor.d/belljar");
    assert!(made.text("/etc/apparmor.d/belljar").unwrap().ends_with("# mine\n"));
    assert_eq!(made.text("/etc/subgid").unwrap(), "", "the other steps are undone");
    // It is still known, and goes once it is as it was.
    made.write("/etc/apparmor.d/belljar", &profile);
    assert_eq!(made.undo().removed, ["/etc/apparmor.d/belljar"]);
    assert!(made.text("/var/lib/belljar/setup.json").is_none());
}

#[test]
fn what_others_made_is_kept() {
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    made.write("/etc/apparmor.d/belljar", "profile belljar /opt/belljar {}\n");
    made.write("/etc/subuid", "ann:200000:65536\n");
    made.write("/etc/subgid", "ann:200000:65536\n");
    made.write("/etc/systemd/system/user@.service.d/90-belljar.conf", "[Service]\nDelegate=no\n");
    let before = made.text("/etc/apparmor.d/belljar");
    let steps = made.machine().set_up().unwrap();
    use StepState::{Blocked, Ready};
    assert_eq!(states(&steps), [Ready, Blocked, Ready, Blocked]);
    assert_eq!(made.text("/etc/apparmor.d/belljar"), before);
    assert_eq!(made.undo(), UndoReport::default());
    assert_eq!(made.text("/etc/subuid").unwrap(), "ann:200000:65536\n");
}

#[test]
fn the_profile_follows_an_executable_that_moved() {
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    made.machine().set_up().unwrap();
    let moved = made.machine_for("/opt/bin/belljar").set_up().unwrap();
    assert_eq!(moved[1].state, StepState::Made, "{moved:?}");
    assert!(made.text("/etc/apparmor.d/belljar").unwrap().contains("\"/opt/bin/belljar\""));
    assert_eq!(made.undo().left, []);
    assert!(made.text("/etc/apparmor.d/belljar").is_none());
    let odd = made.machine_for("/home/a\"b/belljar").examine();
    assert_eq!(odd[1].state, StepState::Blocked);
}

#[test]
fn on_v1_each_hierarchy_gets_a_group_until_a_reboot() {
    let made = MadeUp::new(V1);
    let step = &made.machine().examine()[3];
    assert_eq!(step.state, StepState::Needed);
    assert_eq!(step.commands.len(), 3, "freezer holds no limit: {step:?}");
    assert!(step.note.as_ref().unwrap().contains("gone after a reboot"));
    let mut machine = made.machine();
    let group = user_group(&machine, "memory");
    machine.set_up().unwrap();
    assert!(group.is_dir());
    // The kernel makes the files in it.
    for hierarchy in ["cpu,cpuacct", "memory", "pids"] {
        fs::write(user_group(&machine, hierarchy).join("cgroup.procs"), "").unwrap();
    }
    assert_eq!(made.state("control-group"), StepState::Ready);
    for hierarchy in ["cpu,cpuacct", "memory", "pids"] {
        fs::remove_file(user_group(&machine, hierarchy).join("cgroup.procs")).unwrap();
    }
    assert_eq!(made.undo().left, []);
    assert!(!group.exists());
}

#[test]
fn on_v2_without_systemd_a_group_is_made_and_the_controllers_handed_down() {
    let made = MadeUp::new(UNIFIED);
    made.write("/sys/fs/cgroup/cgroup.subtree_control", "pids\n");
    let step = &made.machine().examine()[3];
    assert!(step.commands[0].contains("+cpu +memory +pids"), "{step:?}");
    assert!(step.note.as_ref().unwrap().contains("cgroup.procs"), "{step:?}");
    made.machine().set_up().unwrap();
    assert!(
        fs::read_dir(made.path("/sys/fs/cgroup"))
            .unwrap()
            .flatten()
            .any(|entry| { entry.file_name().to_string_lossy().starts_with("belljar-user-") })
    );
}

#[test]
fn in_a_container_the_groups_are_read_only_and_setup_says_so() {
    let made = MadeUp::new("30 1 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw\n");
    let step = &made.machine().examine()[3];
    assert_eq!(step.state, StepState::Blocked);
    assert!(step.what.contains("read-only"), "{step:?}");
}

/// A version 2 that can be written does not help where version 1 has the controllers.
#[test]
fn read_only_hierarchies_of_v1_beside_a_writable_v2_are_not_tried() {
    let made = MadeUp::new(HYBRID_READ_ONLY);
    let step = &made.machine().examine()[3];
    assert_eq!(step.state, StepState::Blocked, "{step:?}");
    assert!(step.what.contains("read-only"), "{step:?}");
    // Only what can be written is made.
    let made = MadeUp::new(HYBRID_PARTLY_READ_ONLY);
    let step = &made.machine().examine()[3];
    assert_eq!((step.state, step.commands.len()), (StepState::Needed, 1), "{step:?}");
    assert!(step.commands[0].contains("/sys/fs/cgroup/pids/"), "{step:?}");
}

#[test]
fn a_step_that_fails_is_reported_and_the_others_are_made() {
    let made = MadeUp::new(V1);
    fs::remove_dir(made.path("/sys/fs/cgroup/memory")).unwrap();
    let steps = made.machine().set_up().unwrap();
    assert_eq!(steps[2].state, StepState::Made);
    assert_eq!(steps[3].state, StepState::Failed, "{steps:?}");
    assert!(steps[3].what.contains("/sys/fs/cgroup/memory"), "{steps:?}");
}

#[test]
fn a_journal_that_cannot_be_read_is_an_error_and_is_kept() {
    let made = MadeUp::new(V1);
    made.write("/var/lib/belljar/setup.json", "{\"v\":7,\"entries\":[]}");
    assert!(matches!(Journal::read(made.directory.path()), Err(SetupError::Journal { .. })));
    assert!(made.text("/var/lib/belljar/setup.json").is_some());
}

#[test]
fn an_executable_that_others_can_replace_is_named() {
    let made = MadeUp::new(UNIFIED).like_ubuntu();
    made.write("/home/ann/belljar", "");
    let directory = made.path("/home/ann");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let step = &made.machine_for("/home/ann/belljar").examine()[1];
    assert!(
        step.note.as_ref().is_some_and(|note| note.contains("can be changed by others")),
        "{step:?}"
    );
}

fn user_group(machine: &Machine, hierarchy: &str) -> PathBuf {
    let name = belljar_spec::user_cgroup(machine.account().uid);
    machine.path(format!("/sys/fs/cgroup/{hierarchy}/{name}"))
}
