//! A program that makes refused system calls: this executable once more, inside the sandbox.

use belljar_linux::sys::process::exit_now;
use std::process::ExitCode;
use std::time::Duration;

use belljar_linux::sys::attempt;
use belljar_linux::sys::process::fork;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process, waitpid};

pub(crate) const ARGUMENT: &str = "__call";

/// Prints the result of each call, one a line.
pub(crate) fn run(words: &[String]) -> ExitCode {
    for word in words {
        let (name, count) = word.split_once('*').unwrap_or((word, "1"));
        let mut last = Ok(());
        for number in 0..count.parse::<u64>().unwrap() {
            last = call(name, number);
        }
        println!("{name} {}", text(last));
    }
    ExitCode::SUCCESS
}

fn text(outcome: Result<(), Errno>) -> String {
    match outcome {
        Ok(()) => "done".to_owned(),
        Err(error) => error.raw_os_error().to_string(),
    }
}

fn call(name: &str, number: u64) -> Result<(), Errno> {
    match name {
        "mount" => attempt::mount_tmpfs(c"/tmp"),
        "unshare" => attempt::unshare(libc_newuser()),
        "vsock" => attempt::socket(40, 1, 0),
        "unix" => attempt::socket(1, 1, 0),
        "clone3" => attempt::clone3_new_user(),
        "ioctl" => attempt::ioctl_on_nothing(0xae00 + number as u32),
        "unknown" => attempt::unknown_call(5000),
        "own_listener" => attempt::own_listener(),
        "killed" => killed(),
        "interrupted" => interrupted(),
        "thread_execs" => thread_execs(),
        other => panic!("no call {other}"),
    }
}

fn libc_newuser() -> i32 {
    0x1000_0000
}

/// Children that call without end, killed while they wait.
fn killed() -> Result<(), Errno> {
    let children: Vec<_> = (0..4).map(|_| fork()).collect();
    if children.iter().any(|child| matches!(child, Ok(None))) {
        loop {
            // Forks as well, while another child's call waits.
            let _ = attempt::mount_tmpfs(c"/tmp");
            if let Ok(None) = fork() {
                let _ = attempt::mount_tmpfs(c"/tmp");
                exit_now(0);
            }
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    for child in children.into_iter().flatten().flatten() {
        let _ = kill_process(child, Signal::KILL);
        let _ = waitpid(Some(child), rustix::process::WaitOptions::empty());
    }
    Ok(())
}

/// Signals arrive while calls wait: they are made again, and each is refused.
fn interrupted() -> Result<(), Errno> {
    let target = rustix::process::getpid();
    let Some(child) = fork()? else {
        for _ in 0..200 {
            let _ = kill_process(target, Signal::CONT);
            std::thread::sleep(Duration::from_micros(200));
        }
        exit_now(0);
    };
    for _ in 0..500 {
        if attempt::mount_tmpfs(c"/tmp") != Err(Errno::PERM) {
            return Ok(());
        }
    }
    let _ = waitpid(Some(child), rustix::process::WaitOptions::empty());
    Err(Errno::PERM)
}

/// One thread replaces the program while the call of another waits.
fn thread_execs() -> Result<(), Errno> {
    use std::os::unix::process::CommandExt;
    std::thread::spawn(|| {
        loop {
            let _ = attempt::mount_tmpfs(c"/tmp");
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    let error = std::process::Command::new(std::env::current_exe().unwrap())
        .args([ARGUMENT, "vsock"])
        .exec();
    panic!("{error}");
}
