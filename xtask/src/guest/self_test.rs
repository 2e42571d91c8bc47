//! Shows that the guest's harness would see a fault: boots it with jobs that fail and hang, and
//! expects just that.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::boot::Ending;
use super::job::{As, Job};
use super::verdict::Verdict;
use super::{boot_with, conclude};

pub(super) fn run() -> Result<()> {
    let good = Job::command("good", As::Root, &["sh", "-c", SURROUNDINGS]);
    let user = Job::command("user", As::Tester, &["sh", "-c", "test $(id -u) = 1000"]);
    let bad = Job::command("bad", As::Root, &["sh", "-c", "echo this one fails; exit 7"]);
    let slow = Job {
        seconds: 2,
        ..Job::command("slow", As::Root, &["sh", "-c", "echo this one is stopped; sleep 1000"])
    };
    let jobs = [good, user, bad, slow];
    let booted = boot_with(None, &[], &jobs, Duration::from_secs(120))?;
    ensure!(booted.ending == Ending::Done, "the guest ended with {:?}", booted.ending);
    for (name, verdict) in &booted.results {
        let expected = name == "good" || name == "user";
        let passed = matches!(verdict, Verdict::Passed(_));
        ensure!(passed == expected, "{name} was judged wrongly");
    }
    ensure!(booted.results.len() == jobs.len(), "a job has no result");
    ensure!(conclude(&jobs, &booted).is_err(), "a failing job did not fail the whole");

    eprintln!("now a guest that hangs; it is killed after 20 s");
    let hang = Job { seconds: 1000, ..Job::command("hang", As::Root, &["sleep", "1000"]) };
    let jobs = [hang];
    let booted = boot_with(None, &[], &jobs, Duration::from_secs(20))?;
    ensure!(booted.ending == Ending::Killed, "the guest ended with {:?}", booted.ending);
    ensure!(booted.took < Duration::from_secs(45), "killing it took too long");
    ensure!(conclude(&jobs, &booted).is_err(), "a hung guest did not fail the whole");

    println!("guest self-test: ok");
    Ok(())
}

/// What the tests rely on: cgroup v2 alone, a delegated subtree, overlayfs, a real root.
const SURROUNDINGS: &str = r#"
set -e
test "$(grep -c cgroup /proc/self/mountinfo)" = 1
grep -q memory /sys/fs/cgroup/belljar-test-delegated/leaf/cgroup.controllers
test "$(stat -c %u "$BELLJAR_TEST_DELEGATED")" = 1000
mkdir -p "$TMPDIR/o/lower" "$TMPDIR/o/upper" "$TMPDIR/o/work" "$TMPDIR/o/at"
cd "$TMPDIR/o"
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay at
touch at/written
test -e upper/written
umount at
unshare -m sh -c 'mkdir new; mount --bind /usr new; mkdir -p new/lib; cd new; pivot_root . lib'
unshare -r true
# The user may make cgroups with limits beside the leaf, and nowhere else.
su tester -s /bin/sh -c '
    cd /sys/fs/cgroup/belljar-test-delegated
    mkdir run && echo 64 >run/pids.max && rmdir run && ! mkdir ../run'
# An orphan is reaped when it ends.
sh -c 'sleep 0.2 & echo $! >orphan'
test -e "/proc/$(cat orphan)"
sleep 2
test ! -e "/proc/$(cat orphan)"
"#;
