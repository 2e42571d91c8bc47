//! Entries that wait, act or lie when they are opened.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_tree::{EntryKind, ListLimits, ListOrder, ListingEnd, OpenFileError};
use rustix::fs::{CWD, FileType, Mode};

use crate::support::{each_resolver, skip};

fn refused_as(told: OpenFileError) -> EntryKind {
    match told {
        OpenFileError::NotRegular { kind, .. } => kind,
        told => panic!("{told}"),
    }
}

#[test]
fn a_fifo_is_refused_at_once() {
    each_resolver(|place, dir| {
        rustix::fs::mkfifoat(CWD, place.tree().join("fifo"), Mode::RWXU).unwrap();
        fs::write(place.tree().join("file"), "x").unwrap();
        let begun = Instant::now();
        assert_eq!(refused_as(dir.open_file("fifo").unwrap_err()), EntryKind::Fifo);
        assert_eq!(refused_as(dir.open_file_writable("fifo").unwrap_err()), EntryKind::Fifo);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(dir.open_file("file").is_ok() && dir.open_file_writable("file").is_ok());
    });
}

#[test]
fn a_socket_is_refused() {
    each_resolver(|place, dir| {
        let _listener = UnixListener::bind(place.tree().join("socket")).unwrap();
        assert_eq!(refused_as(dir.open_file("socket").unwrap_err()), EntryKind::Socket);
        assert_eq!(dir.stat("socket").unwrap().kind(), EntryKind::Socket);
    });
}

#[test]
fn a_device_is_refused() {
    each_resolver(|place, dir| {
        let zero = rustix::fs::makedev(1, 5);
        let node = place.tree().join("zero");
        let kind = FileType::CharacterDevice;
        if rustix::fs::mknodat(CWD, &node, kind, Mode::RWXU, zero).is_err() {
            skip("no device can be made here");
            return;
        }
        assert_eq!(refused_as(dir.open_file("zero").unwrap_err()), EntryKind::CharacterDevice);
        assert_eq!(dir.stat("zero").unwrap().device_number(), zero);
    });
}

/// The lease is of another process, which does not answer.
#[test]
fn a_leased_file_is_told_and_not_waited_for() {
    each_resolver(|place, dir| {
        fs::write(place.tree().join("leased"), "x").unwrap();
        fs::write(place.tree().join("free"), "x").unwrap();
        let hold = "import fcntl, signal, sys, os\n\
                    signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                    f = os.open(sys.argv[1], os.O_RDWR)\n\
                    fcntl.fcntl(f, 1024, fcntl.F_WRLCK)\n\
                    print('held', flush=True)\n\
                    sys.stdin.read()\n";
        let holder = Command::new("python3")
            .args(["-c", hold])
            .arg(place.tree().join("leased"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut holder) = holder else { return skip("python3 is not there to hold a lease") };
        let mut said = String::new();
        let out = holder.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
        if said.trim() != "held" {
            skip("no lease can be had here");
        } else {
            let begun = Instant::now();
            let told = dir.open_file("leased").unwrap_err();
            assert!(matches!(told, OpenFileError::Leased { .. }), "{told:?}");
            assert!(begun.elapsed() < Duration::from_secs(5));
            assert!(dir.open_file("free").is_ok(), "the control");
        }
        drop(holder.stdin.take());
        holder.wait().unwrap();
    });
}

#[test]
fn a_listing_has_bounds() {
    each_resolver(|place, dir| {
        for number in 0..50 {
            fs::write(place.tree().join(format!("{number:02}")), "").unwrap();
        }
        let list = |entries, name_bytes| {
            dir.list("", ListLimits { entries, name_bytes }, ListOrder::Sorted).unwrap()
        };
        let all = list(50, 100);
        assert_eq!((all.entries.len(), all.end), (50, ListingEnd::Complete));
        assert!(all.entries.is_sorted_by(|one, other| one.name < other.name));
        assert_eq!(all.entries[7].name, "07");
        assert_eq!(all.entries[7].kind, EntryKind::File);
        let few = list(49, 100);
        assert_eq!((few.entries.len(), few.end), (49, ListingEnd::Limit));
        let short = list(50, 99);
        assert_eq!((short.entries.len(), short.end), (49, ListingEnd::Limit));
        assert_eq!(dir.entries("").unwrap().count(), 50);
        assert!(!dir.is_empty("").unwrap());
    });
}

/// As under a seccomp profile that does not know the call: some say `EPERM`, some `ENOSYS`.
#[test]
fn without_openat2_the_same_is_refused() {
    let forbid = "import ctypes, os, struct, sys\n\
                  nr, errno = 437, int(sys.argv[1])\n\
                  code = [(0x20, 0, 0, 0), (0x15, 0, 1, nr), (6, 0, 0, 0x50000 | errno),\n\
                  \x20       (6, 0, 0, 0x7fff0000)]\n\
                  code = b''.join(struct.pack('HBBI', *line) for line in code)\n\
                  buffer = ctypes.create_string_buffer(code)\n\
                  program = struct.pack('HxxxxxxQ', 4, ctypes.addressof(buffer))\n\
                  prctl = ctypes.CDLL(None).prctl\n\
                  assert prctl(38, 1, 0, 0, 0) == 0\n\
                  assert prctl(22, 2, program, 0, 0) == 0\n\
                  assert ctypes.CDLL(None).syscall(nr, -100, b'/', program, 24) == -1\n\
                  os.execv(sys.argv[2], sys.argv[2:])\n";
    for errno in ["1", "38"] {
        let output = Command::new("python3")
            .args(["-c", forbid, errno])
            .arg(std::env::current_exe().unwrap())
            .args(["beneath::", "names::", "mounts::", "remove::links", "remove::odd"])
            .output();
        let Ok(output) = output else { return skip("python3 is not there to make a filter") };
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("AssertionError") {
            return skip("no filter can be made here");
        }
        assert!(output.status.success() && text.contains(" passed"), "{text}{errors}");
        assert!(!text.contains(" 0 passed"), "{text}");
    }
}
