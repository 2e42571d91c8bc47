//! A link to PID 1 that breaks: it goes on over another one, for whoever has the key, until the lease ends.

use std::time::{Duration, Instant};

use belljar_spec::ExitStatus;
use belljar_spec::wire::ToInit;

use crate::driver::{Driver, Users};

const KEY: [u8; 32] = [7; 32];
const LONG: Duration = Duration::from_secs(60);

/// Numbers, so that a lost, repeated or reordered byte shows.
const COUNT: &str = "i=0; while [ $i -lt 60000 ]; do echo $i; i=$((i+1)); done; exit 3";

fn counted() -> String {
    (0..60_000).map(|number| format!("{number}\n")).collect()
}

/// Cut in the middle of output, again and again.
pub(crate) fn output_goes_on(users: Users) {
    let mut driver = Driver::over_links(users, LONG);
    let count = driver.shell(COUNT);
    for part in 1..5 {
        driver.wait_for_output(count.stdout, part * 60_000);
        driver.cut();
        assert!(driver.resume(KEY));
    }
    assert_eq!(driver.exited(count.exec), ExitStatus::Code(3));
    assert!(driver.text(count.stdout) == counted());
    // Input, too: a command that waited for it all the while.
    let cat = driver.shell("cat");
    driver.cut();
    assert_eq!(driver.send(cat.stdin, b"given while there was no link"), 29);
    assert!(driver.resume(KEY));
    driver.end(cat.stdin);
    assert_eq!(driver.exited(cat.exec), ExitStatus::Code(0));
    assert_eq!(driver.text(cat.stdout), "given while there was no link");
}

/// The command waits while nothing is read, and nothing piles up.
pub(crate) fn output_is_held_back(users: Users) {
    let mut driver = Driver::over_links(users, LONG);
    let yes = driver.shell("yes");
    driver.wait_for_output(yes.stdout, 1);
    driver.cut();
    let before = driver.resident_kib();
    std::thread::sleep(Duration::from_millis(500));
    assert!(driver.resident_kib() < before + 8 * 1024, "{} KiB", driver.resident_kib());
    assert!(driver.resume(KEY));
    driver.wait_for_output(yes.stdout, 300_000);
    let text = driver.text(yes.stdout);
    assert!(text.as_bytes().chunks_exact(2).all(|line| line == b"y\n"));
}

/// Another key is refused, and who has the right one still gets in.
pub(crate) fn only_the_launcher_comes_back(users: Users) {
    let mut driver = Driver::over_links(users, LONG);
    let sleep = driver.shell("exec sleep 1000");
    driver.cut();
    assert!(!driver.resume([8; 32]));
    assert!(!driver.resume([0; 32]));
    assert!(driver.resume(KEY));
    driver.send_message(&ToInit::KillTree { exec: sleep.exec });
    assert_eq!(driver.exited(sleep.exec), ExitStatus::Signal(9));
}

/// Without a link the lease ends, and with it everything inside; impostors do not renew it.
pub(crate) fn the_lease_ends(users: Users) {
    let lease = Duration::from_secs(3);
    let mut driver = Driver::over_links(users, lease);
    driver.shell("exec sleep 1000");
    // The control: with a link it lives on for longer than a lease.
    for _ in 0..6 {
        driver.send_message(&ToInit::Alive);
        driver.listen(lease / 3);
    }
    driver.wait_for_processes(2);
    driver.cut();
    let cut = Instant::now();
    std::thread::sleep(lease / 2);
    assert!(!driver.resume([8; 32]));
    driver.wait_until_gone(LONG);
    assert!(cut.elapsed() < 10 * lease, "{:?}", cut.elapsed());
}

/// What hands over links is gone: none will come, so nothing is waited for.
pub(crate) fn no_more_links(users: Users) {
    let mut driver = Driver::over_links(users, Duration::from_secs(1000));
    driver.shell("exec sleep 1000");
    driver.wait_for_processes(2);
    driver.end_of_links();
    driver.cut();
    driver.wait_until_gone(LONG);
}
