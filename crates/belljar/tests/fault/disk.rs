//! A disk that is full, read-only or broken: the run stops, and nothing goes on unrecorded.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_testkit::{
    Fault, Lab, Point, TraceScope, as_root, count_calls, marker, until, wait_until_gone,
};

/// A file system of its own below a lab, unmounted when dropped.
struct Small {
    at: PathBuf,
}

impl Small {
    /// 8 MiB of ext4 in a file, or of memory. `None` only where nobody may mount, which is said.
    fn new(lab: &Lab) -> Option<Self> {
        if !as_root() {
            eprintln!("NOT CHECKED: only root can mount a small file system");
            return None;
        }
        let image = lab.make_file("tmp/image", "");
        fs::File::options().write(true).open(&image).unwrap().set_len(8 << 20).unwrap();
        let at = lab.make_directory("small");
        succeeds(
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4", "-m", "0", "-e", "remount-ro"])
                .arg(&image),
        );
        if try_to(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at)).is_err() {
            eprintln!("no loop device can be had: a tmpfs instead of a disk");
            let size = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"];
            succeeds(Command::new("mount").args(size).arg(&at));
        }
        let small = Self { at };
        fs::set_permissions(&small.at, fs::Permissions::from_mode(0o700)).unwrap();
        Some(small)
    }

    fn remount(&self, how: &str) {
        succeeds(Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.at));
    }

    /// What makes an ext4 believe that its disk failed.
    fn error_trigger(&self) -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| {
            line.split(' ').nth(4).is_some_and(|at| Path::new(at) == self.at.as_path())
        })?;
        let device = line.split(" - ").nth(1)?.split(' ').nth(1)?.strip_prefix("/dev/")?;
        let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
        trigger.exists().then_some(trigger)
    }

    /// Unmounted, checked, and mounted again.
    fn repair(&self, lab: &Lab) {
        let image = lab.path("tmp/image");
        succeeds(Command::new("umount").arg(&self.at));
        // A sandbox that another test builds just now may hold a copy of the mount for a moment; mounted
        // again before that is gone, it would be the broken one.
        let attached = || Command::new("losetup").arg("-j").arg(&image).output().unwrap().stdout;
        assert!(until(std::time::Duration::from_secs(20), || attached().is_empty()));
        // 1: errors were corrected.
        let code = Command::new("e2fsck").args(["-fy"]).arg(&image).output().unwrap().status.code();
        assert!(matches!(code, Some(0 | 1)), "e2fsck: {code:?}");
        succeeds(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&self.at));
    }

    /// Takes all but so many bytes.
    fn fill(&self, leave: u64) -> PathBuf {
        let path = self.at.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        let mut length = 0;
        while let Ok(written @ 1..) = file.write(&[1; 4096]) {
            length += written as u64;
        }
        file.set_len(length - leave).unwrap();
        file.sync_all().unwrap();
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let gone = || Command::new("umount").arg(&self.at).status().unwrap().success();
        until(std::time::Duration::from_secs(5), gone);
    }
}

fn succeeds(command: &mut Command) {
    try_to(command).unwrap_or_else(|why| panic!("{command:?}: {why}"));
}

fn try_to(command: &mut Command) -> Result<(), String> {
    let done = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(said) }
}

fn only_run(home: &Path) -> String {
    let names: Vec<String> = fs::read_dir(home.join("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

/// The lab's own home becomes a link-free directory on the small file system.
fn lab_on(small: impl Fn(&Lab) -> Option<Small>) -> Option<(Lab, Small)> {
    let mut lab = Lab::me();
    let made = small(&lab)?;
    let home = made.at.join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    lab.use_home(home);
    Some((lab, made))
}

#[test]
fn a_full_disk_stops_the_run_and_the_record_says_so() {
    let Some((lab, small)) = lab_on(Small::new) else { return };
    let other = Lab::me();
    let other_marker = marker();
    let script = format!("echo ready; read line; echo $line # {other_marker}");
    let mut bystander = other
        .run(["--no-config", "--", "sh", "-c", &script])
        .input(belljar_testkit::Input::Open)
        .spawn();
    bystander.wait_for_output("ready");

    // What will be given back, so that the next command has room for what is left to do.
    let ballast = small.at.join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let marker = marker();
    // More than the disk has, and less than the record may have. What comes after it never happens.
    let script = format!("head -c 30000000 /dev/zero; sleep {marker}; echo unrecorded > went_on");
    let done =
        lab.run(["--no-config", "--result", "result.json", "--", "sh", "-c", &script]).done();
    done.expect(125);
    wait_until_gone(std::time::Duration::from_secs(3), &marker, &lab.exe);
    assert!(!lab.work().join("went_on").exists(), "the command went on without a record");
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(lab.work().join("result.json")).unwrap()).unwrap();
    assert_eq!(result["reason"], "error", "{result:#}");
    done.says(&["stdout.bin", "No space left"]);

    // The end is in the log, and what is there holds together, before anybody comes to tidy up.
    let run = only_run(&lab.home());
    let events = lab.events(&run);
    let end = events.last().unwrap();
    assert_eq!(end.kind, belljar::spec::EventKind::RunStop);
    assert_eq!(end.data["reason"], "error", "{end:?}");
    let detail = end.data["detail"].as_str().unwrap();
    assert!(detail.contains("stdout.bin") && detail.contains("No space left"), "{detail}");

    // With room again the next command does what was left, and all of it is sound.
    fs::remove_file(&ballast).unwrap();
    let found = lab.reconcile();
    assert_eq!(found.left, Vec::<String>::new());
    lab.assert_no_traces(&lab.runs());
    assert_eq!(lab.assert_sound(&run)["reason"], "error");
    let stored = fs::metadata(lab.home().join("runs").join(&run).join("stdout.bin")).unwrap().len();
    assert!(stored > 1 << 20, "only {stored} bytes were kept of a disk full of them");
    lab.run(["--no-config", "--", "true"]).done().expect(0);
    bystander.type_in(b"still here\n");
    assert_eq!(bystander.done().expect(0).out(), "ready\nstill here\n");
    other.assert_all_sound();
}

/// The same for a kept sandbox: whoever asked is told.
#[test]
fn a_full_disk_ends_a_kept_sandbox() {
    let Some((lab, small)) = lab_on(Small::new) else { return };
    let ballast = small.at.join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let sandbox = belljar::Sandbox::builder()
            .no_config()
            .no_workspace()
            .home(lab.home())
            .belljar(&lab.exe)
            .start()
            .await
            .unwrap();
        let output = sandbox.exec(["echo", "room"]).output().await.unwrap();
        assert_eq!(output.stdout, b"room\n"); // the control
        let flood = sandbox.exec(["head", "-c", "30000000", "/dev/zero"]).output().await;
        let success = flood.is_ok_and(|output| output.exit.code == Some(0));
        assert!(!success, "a command whose output is not recorded was told to have succeeded");
        sandbox.client().stopped().await.unwrap()
    });
    assert_eq!(report.reason, belljar::spec::StopReason::Error);
    let detail = report.detail.unwrap();
    assert!(detail.contains("No space left"), "{detail}");
    fs::remove_file(&ballast).unwrap();
    // Its supervisor sent the report before it ended, and until then the run is not a dead one.
    let is_clean = || lab.reconcile().left.is_empty() && lab.live().is_empty();
    assert!(until(std::time::Duration::from_secs(30), is_clean), "{:?}", lab.live());
    lab.assert_no_traces(&lab.runs());
    assert_eq!(lab.assert_all_sound().len(), 1);
}

/// The file system breaks down while the command runs, as on a disk that dies.
#[test]
fn a_disk_that_breaks_stops_the_run() {
    let Some((lab, small)) = lab_on(Small::new) else { return };
    let Some(trigger) = small.error_trigger() else {
        eprintln!("NOT CHECKED: this file system cannot be made to fail");
        return;
    };
    lab.run(["--no-config", "--", "true"]).done().expect(0); // the control
    let before = lab.runs();
    let marker = marker();
    let script = format!("while :; do echo {marker}; sleep 0.01; done");
    let live = lab.run(["--no-config", "--", "sh", "-c", &script]).spawn();
    live.wait_for_output(&marker);
    fs::write(&trigger, "1").unwrap();
    let done = live.done();
    done.expect(125);
    assert!(!done.stderr.is_empty(), "no word about it: {done}");
    wait_until_gone(std::time::Duration::from_secs(3), &marker, &lab.exe);

    // Repaired, it has what had reached it, and the run is closed as far as that goes.
    small.repair(&lab);
    let live = lab.live();
    assert_eq!(lab.reconcile().left, Vec::<String>::new());
    lab.assert_no_traces(&live);
    let ends = lab.assert_all_sound();
    let new: Vec<_> = ends.iter().filter(|(id, _)| !before.contains(id)).collect();
    assert_eq!(new.len(), 1, "run.start was on the disk before the command ran");
    assert!(new[0].1["reason"] == "lost" || new[0].1["reason"] == "error", "{new:?}");
    lab.run(["--no-config", "--", "true"]).done().expect(0);
}

/// Full before it begins: refused, or recorded to its end, and never half.
#[test]
fn no_room_at_the_start_is_refused_or_recorded_to_its_end() {
    let Some((lab, small)) = lab_on(Small::new) else { return };
    lab.run(["--no-config", "--", "true"]).done().expect(0); // the control
    let mut refused = 0;
    for leave in (0..40).map(|step| step * 8192) {
        let before = lab.runs();
        let filler = small.fill(leave);
        let marker = marker();
        let script = format!("echo ran > went_on; echo {marker}");
        let done = lab.run(["--no-config", "--", "sh", "-c", &script]).done();
        let ran = fs::remove_file(lab.work().join("went_on")).is_ok();
        assert!(ran || done.code() != 0, "a success that never ran: {done}");
        refused += u32::from(!ran);
        if !ran {
            assert!(done.err().contains("o space left"), "it does not say why: {done}");
        }
        fs::remove_file(filler).unwrap();
        let found = lab.reconcile();
        assert_eq!(found.left, Vec::<String>::new(), "{done}");
        lab.assert_no_traces(&lab.runs());
        let ends = lab.assert_all_sound();
        let new = ends.iter().filter(|(id, _)| !before.contains(id)).count();
        assert!(!ran || new == 1, "it ran and has no record: {done}");
    }
    assert!(refused > 0, "the disk was never full enough");
    assert!(refused < 40, "the disk was always too full");
}

#[test]
fn a_read_only_home_is_refused_before_anything_starts() {
    let Some((lab, small)) = lab_on(Small::new) else { return };
    lab.run(["--no-config", "--", "true"]).done().expect(0); // the control
    let before = lab.runs();
    small.remount("ro");
    let done = lab.run(["--no-config", "--", "sh", "-c", "echo ran > went_on"]).done();
    done.expect(125).says(&[lab.home().to_str().unwrap(), "Read-only file system"]);
    assert!(!lab.work().join("went_on").exists());
    assert_eq!(lab.runs(), before);
    small.remount("rw");
    lab.run(["--no-config", "--", "true"]).done().expect(0);
}

/// An fdatasync that fails may have lost what was written: no exit may be reported as a success.
#[test]
fn a_sync_that_fails_is_never_a_success() {
    let lab = Lab::me();
    let words = ["--no-config", "-q", "--", "sh", "-c", "echo out; echo x >> ran"];
    lab.run(words).done().expect(0);
    let counts = count_calls(&lab, lab.run(words), TraceScope::Launcher, &["fdatasync", "fsync"]);
    assert!(counts.get("fdatasync").is_some_and(|count| *count >= 2), "{counts:?}");
    for (call, count) in counts {
        for number in 1..=count {
            let point = Point { call: call.clone(), number, scope: TraceScope::Launcher };
            eprintln!("{point:?}");
            let before = lab.runs();
            let _ = fs::remove_file(lab.work().join("ran"));
            let done = point.hit(lab.run(words), Fault::Fails("EIO")).done();
            let found = lab.reconcile();
            assert_eq!(found.left, Vec::<String>::new(), "{done}");
            lab.assert_no_traces(&lab.runs());
            let ends = lab.assert_all_sound();
            let new: Vec<_> = ends.iter().filter(|(id, _)| !before.contains(id)).collect();
            let ran = lab.work().join("ran").exists();
            assert!(new.len() == 1 || !ran, "it ran and has no record: {done}");
            // The ledger's own syncs come after the log's end: the log is what counts.
            if call == "fdatasync" && number <= 2 {
                done.expect(125).says(&["Input/output error"]);
            }
            if done.code() == 0 {
                assert_eq!(new[0].1["exit"]["code"], 0, "{new:?}");
            }
        }
    }
    lab.run(words).done().expect(0);
}
