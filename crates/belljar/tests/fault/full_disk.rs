//! A run that fills the disk of the home takes no control away: everything that ends it, shows it and frees space
//! still works.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belljar_testkit::{Actor, Done, Lab, as_root, each_user, processes_of, send, until};
use rustix::fs::statvfs;
use rustix::process::Signal;

/// What the home lies on.
#[derive(Clone, Copy, Debug)]
enum Disk {
    Ext4,
    Tmpfs,
}

/// What is used up.
#[derive(Clone, Copy, Debug)]
enum Full {
    Bytes,
    Inodes,
}

impl Full {
    /// A command that takes all there is, again and again, so that what is freed is gone the next moment.
    fn script(self) -> &'static str {
        match self {
            Self::Bytes => {
                "while :; do cat /dev/zero >> ~/fill; echo > /workspace/full; sleep 0.05; done 2>/dev/null"
            }
            Self::Inodes => {
                "mkdir ~/d; n=0; while :; do while true > ~/d/f$n; do n=$((n+1)); done; \
                 echo > /workspace/full; sleep 0.05; done 2>/dev/null"
            }
        }
    }

    /// How much of it is left, in parts of a hundred.
    fn left(self, at: &Path) -> u64 {
        let found = statvfs(at).unwrap();
        match self {
            Self::Bytes => found.f_bavail * 100 / found.f_blocks,
            Self::Inodes => found.f_favail * 100 / found.f_files,
        }
    }
}

/// What was in the home before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    SomeRuns,
    /// Not even a ledger, which is made at the end of the first run.
    Nothing,
}

/// A file system of its own for the home, unmounted when dropped.
struct Small {
    at: PathBuf,
}

impl Small {
    const MEBIBYTES: u64 = 24;
    const INODES: u32 = 1024;

    fn new(lab: &Lab, disk: Disk) -> Self {
        let at = lab.make_directory("small");
        let (size, inodes) = (Self::MEBIBYTES << 20, Self::INODES.to_string());
        match disk {
            Disk::Ext4 => {
                let image = lab.path("tmp/image");
                fs::File::create(&image).unwrap().set_len(size).unwrap();
                let make = ["-q", "-F", "-t", "ext4", "-m", "0", "-N", &inodes];
                succeeds(Command::new("mke2fs").args(make).arg(&image));
                succeeds(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
            }
            Disk::Tmpfs => {
                let how = format!("size={size},nr_inodes={inodes}");
                let words = ["-t", "tmpfs", "-o", &how, "tmpfs"];
                succeeds(Command::new("mount").args(words).arg(&at));
            }
        }
        let small = Self { at };
        let home = small.at.join("home");
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
        if let Some(user) = lab.actor.user() {
            for path in [&small.at, &home] {
                chown(path, Some(user.uid), Some(user.gid)).unwrap();
            }
        }
        small
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let gone = || Command::new("umount").arg(&self.at).output().unwrap().status.success();
        until(Duration::from_secs(5), gone);
    }
}

fn succeeds(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A home with some runs that are over, and a live one that has filled its disk.
struct Crowded {
    small: Small,
    lab: Lab,
    full: Full,
    failed: RefCell<Vec<String>>,
}

impl Crowded {
    fn new(actor: Actor, disk: Disk, full: Full, before: Before) -> Self {
        let mut lab = Lab::new(actor);
        let small = Small::new(&lab, disk);
        lab.use_home(small.at.join("home"));
        let run = |name: &str, options: &[&str], script: &str| {
            let own = ["-q", "--no-config", "--name", name];
            let command = ["--", "sh", "-c", script];
            lab.run(own.iter().chain(options).chain(&command)).done().expect(0);
        };
        if before == Before::SomeRuns {
            for name in ["old", "older"] {
                run(name, &[], "echo said; echo kept > ~/file");
            }
            run("changed", &["--workspace", ".:overlay"], "echo x > new");
        }
        run("hog", &["-d"], full.script());
        let crowded = Self { small, lab, full, failed: RefCell::default() };
        crowded.wait_until_full();
        crowded
    }

    fn wait_until_full(&self) {
        let mark = self.lab.work().join("full");
        let _ = fs::remove_file(&mark);
        assert!(until(belljar_testkit::CALL_TIMEOUT, || mark.exists()), "the disk was never full");
        assert!(self.full.left(&self.small.at) < 2, "it is not full");
    }

    /// The command works while the disk is full; otherwise it is noted, and the next one is tried.
    fn works(&self, words: &[&str]) -> Done {
        if !self.lab.live().is_empty() {
            self.wait_until_full();
        }
        let done = self.lab.belljar(words).done();
        if done.code() != 0 {
            let said = done.err().lines().take(3).collect::<Vec<_>>().join(" / ");
            self.failed.borrow_mut().push(format!("{words:?}: {} {said}", done.code()));
        }
        done
    }

    /// What the rest of a test needs; otherwise it is noted.
    fn is_stopped(&self) -> bool {
        let stopped = until(Duration::from_secs(20), || self.lab.live().is_empty());
        if !stopped {
            self.failed.borrow_mut().push("the run is still live".to_owned());
        }
        stopped
    }

    fn works_and_prints(&self, words: &[&str], part: &str) {
        let done = self.works(words);
        if done.code() == 0 && !done.out().contains(part) {
            self.failed
                .borrow_mut()
                .push(format!("{words:?} did not print {part:?}: {}", done.out()));
        }
    }
}

impl Drop for Crowded {
    /// Nothing may hold the file system when it is unmounted.
    fn drop(&mut self) {
        for left in processes_of(&self.lab.exe) {
            send(left, Signal::KILL);
        }
        until(Duration::from_secs(5), || processes_of(&self.lab.exe).is_empty());
    }
}

fn each_disk(full: Full, before: Before, test: impl Fn(&Crowded, Disk)) {
    if !as_root() {
        eprintln!("NOT CHECKED: only root can mount a small file system");
        return;
    }
    let failed = RefCell::new(Vec::new());
    each_user(|lab| {
        for disk in [Disk::Ext4, Disk::Tmpfs] {
            let crowded = Crowded::new(lab.actor, disk, full, before);
            test(&crowded, disk);
            for what in crowded.failed.take() {
                failed.borrow_mut().push(format!("as {:?}, {disk:?}: {what}", lab.actor));
            }
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{full:?}:\n{}", failed.join("\n"));
}

/// The live run is seen, spoken to, ended, and what it took is free again.
fn the_live_run_stays_under_control(full: Full) {
    each_disk(full, Before::SomeRuns, |crowded, _| {
        crowded.works_and_prints(&["ps"], "hog");
        crowded.works_and_prints(&["ps", "-a", "--json"], "\"older\"");
        crowded.works(&["show", "hog"]);
        crowded.works_and_prints(&["show", "--json", "old"], "\"exited\"");
        crowded.works(&["logs", "hog"]);
        crowded.works_and_prints(&["logs", "old"], "said");
        crowded.works(&["events", "old"]);
        crowded.works(&["verify", "old"]);
        crowded.works(&["verify", "hog"]);
        crowded.works(&["exec", "hog", "--", "true"]);
        crowded.works(&["reconcile"]);
        crowded.works(&["stop", "-t", "0", "hog"]);
        if !crowded.is_stopped() {
            return;
        }
        crowded.works_and_prints(&["ps", "-a"], "hog");
        // Ended by us, on a full disk: the record says so, or what it lacks, and never that somebody changed it.
        let verdict = crowded.lab.belljar(["verify", "hog"]).done();
        let lied = ["changed", "dropped", "reordered", "replayed", "appended", "cut"]
            .iter()
            .any(|word| verdict.out().contains(word));
        if lied || verdict.code() > 1 {
            crowded.failed.borrow_mut().push(format!("verify of the stopped run: {verdict}"));
        }
        crowded.works(&["rm", "hog"]);
        let free = crowded.full.left(&crowded.small.at);
        if free < 50 {
            crowded.failed.borrow_mut().push(format!("after rm only {free} of 100 are free"));
        }
        let after = crowded.lab.run(["-q", "--no-config", "--", "true"]).done();
        if after.code() != 0 {
            crowded.failed.borrow_mut().push(format!("the next run: {after}"));
        }
        crowded.works(&["verify", "--all"]);
    });
}

#[test]
fn a_run_that_takes_every_byte_stays_under_control() {
    the_live_run_stays_under_control(Full::Bytes);
}

#[test]
fn a_run_that_takes_every_inode_stays_under_control() {
    the_live_run_stays_under_control(Full::Inodes);
}

/// The first run of a home, which has no ledger yet.
fn the_first_run_stays_under_control(full: Full) {
    each_disk(full, Before::Nothing, |crowded, _| {
        crowded.works_and_prints(&["ps"], "hog");
        crowded.works(&["show", "hog"]);
        crowded.works(&["logs", "hog"]);
        crowded.works(&["verify", "hog"]);
        crowded.works(&["exec", "hog", "--", "true"]);
        crowded.works(&["reconcile"]);
        crowded.works(&["stop", "-t", "0", "hog"]);
        if !crowded.is_stopped() {
            return;
        }
        crowded.works_and_prints(&["ps", "-a"], "hog");
        crowded.works(&["rm", "hog"]);
        let after = crowded.lab.run(["-q", "--no-config", "--", "true"]).done();
        if after.code() != 0 {
            crowded.failed.borrow_mut().push(format!("the next run: {after}"));
        }
    });
}

#[test]
fn the_first_run_of_a_home_stays_under_control_without_a_free_byte() {
    the_first_run_stays_under_control(Full::Bytes);
}

#[test]
fn the_first_run_of_a_home_stays_under_control_without_a_free_inode() {
    the_first_run_stays_under_control(Full::Inodes);
}

/// What frees space works without any.
fn what_frees_space_needs_none(full: Full) {
    each_disk(full, Before::SomeRuns, |crowded, disk| {
        let home = crowded.lab.home();
        let directories = || fs::read_dir(home.join("runs")).unwrap().count();
        let before = directories();
        crowded.works(&["rm", "old"]);
        if directories() != before - 1 {
            crowded.failed.borrow_mut().push("rm left the run's directory".to_owned());
        }
        crowded.works(&["discard", "--yes", "changed"]);
        let changes = crowded.lab.belljar(["diff", "--name-only", "changed"]).done();
        if changes.out().contains("new") {
            crowded.failed.borrow_mut().push("discard left the changes".to_owned());
        }
        crowded.works(&["prune", "--keep", "0"]);
        if directories() != 1 {
            crowded.failed.borrow_mut().push(format!("prune left {} runs", directories()));
        }
        // With room again all of that is in the books.
        crowded.works(&["rm", "-f", "hog"]);
        crowded.works(&["reconcile"]);
        let listed = crowded.works(&["ps", "-a", "--json"]).out();
        for name in ["old", "older", "changed", "hog"] {
            if listed.contains(&format!("\"{name}\"")) {
                crowded.failed.borrow_mut().push(format!("{name} is still listed"));
            }
        }
        eprintln!("{disk:?} is done");
    });
}

#[test]
fn what_frees_space_works_without_a_free_byte() {
    what_frees_space_needs_none(Full::Bytes);
}

#[test]
fn what_frees_space_works_without_a_free_inode() {
    what_frees_space_needs_none(Full::Inodes);
}

/// The control: the same commands on the same disk with room.
#[test]
fn with_room_all_of_it_works() {
    if !as_root() {
        return;
    }
    each_user(|lab| {
        let mut lab = Lab::new(lab.actor);
        let small = Small::new(&lab, Disk::Ext4);
        lab.use_home(small.at.join("home"));
        let words = ["-q", "--no-config", "-d", "--name", "hog", "--", "sleep", "1000"];
        lab.run(words).done().expect(0);
        let over = ["-q", "--no-config", "--name", "changed", "--workspace", ".:overlay"];
        lab.run(over.iter().chain(&["--", "touch", "new"])).done().expect(0);
        let calls: [&[&str]; 11] = [
            &["ps"],
            &["show", "hog"],
            &["logs", "hog"],
            &["verify", "hog"],
            &["exec", "hog", "--", "true"],
            &["reconcile"],
            &["stop", "-t", "0", "hog"],
            &["verify", "hog"],
            &["rm", "hog"],
            &["discard", "--yes", "changed"],
            &["prune", "--keep", "0"],
        ];
        for words in calls {
            lab.belljar(words).done().expect(0);
        }
        assert_eq!(lab.runs(), Vec::<String>::new());
    });
}
