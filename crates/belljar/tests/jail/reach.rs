//! Calls that would reach past the run by what they leave behind or hold on to, tried inside; and the same calls
//! with what programs need of them. Not for the guest, which has no Python.

use std::time::{Duration, Instant};

use belljar_testkit::{Lab, each_actor, in_the_guest};

/// Prints what each call was answered with: a name of the error, or `ok`.
const TRY: &str = r#"
import ctypes, errno, fcntl, os, socket, struct, sys, termios
libc = ctypes.CDLL(None, use_errno=True)
def tell(what, call):
    try:
        call()
        print(what, "ok", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
def rename(flags):
    open("from", "w").close()
    try:
        checked(libc.renameat2(-100, b"from", -100, b"to", flags))
    finally:
        for name in ["from", "to"]:
            try:
                os.unlink(name)
            except OSError:
                pass
"#;

fn answers(lab: &Lab, options: &[&str], script: &str) -> String {
    let script = format!("{TRY}{script}");
    let words = options.iter().copied().chain(["--", "/usr/bin/python3", "-c", &script]);
    let done = lab.run(words).done();
    done.expect(0);
    done.out()
}

/// A lease makes everybody who opens the file wait until its holder gives it back, or 45 seconds.
#[test]
fn no_lease_makes_the_host_wait_for_a_run() {
    if in_the_guest() {
        return;
    }
    each_actor(|lab| {
        lab.make_file("work/held", "content");
        lab.make_file("single", "content");
        let single = format!("{}:/single", lab.path("single").display());
        let script = r#"
held = os.open("held", os.O_RDONLY)
single = os.open("/single", os.O_RDONLY)
tell("write lease", lambda: fcntl.fcntl(held, 1024, fcntl.F_WRLCK))
tell("read lease", lambda: fcntl.fcntl(single, 1024, fcntl.F_RDLCK))
tell("notify", lambda: fcntl.fcntl(os.open(".", os.O_RDONLY), 1026, 1))
tell("asking", lambda: fcntl.fcntl(held, 1025))
tell("flags", lambda: fcntl.fcntl(held, fcntl.F_GETFL))
tell("lock", lambda: fcntl.lockf(os.open("held", os.O_RDWR), fcntl.LOCK_EX))
tell("copy", lambda: fcntl.fcntl(held, fcntl.F_DUPFD_CLOEXEC, 10))
print("holding", flush=True)
sys.stdin.read()
"#;
        let script = format!("{TRY}{script}");
        let words = ["-i", "-v", &single, "--", "/usr/bin/python3", "-c", &script];
        let mut live = lab.run(words).input(belljar_testkit::Input::Open).spawn();
        live.wait_for_output("holding");
        let begun = Instant::now();
        for name in ["work/held", "single"] {
            std::fs::OpenOptions::new().append(true).open(lab.path(name)).unwrap();
        }
        let took = begun.elapsed();
        live.close_input();
        let done = live.done();
        done.expect(0);
        let expected = "write lease EINVAL\nread lease EINVAL\nnotify EINVAL\n\
             asking ok\nflags ok\nlock ok\ncopy ok\nholding\n";
        assert_eq!(done.out(), expected);
        assert!(took < Duration::from_secs(5), "the host waited {took:?}");
    });
}

#[test]
fn a_rename_leaves_no_device_node_and_flags_of_files_stay() {
    if in_the_guest() {
        return;
    }
    each_actor(|lab| {
        let script = r#"
tell("whiteout", lambda: rename(4))
tell("no replace", lambda: rename(1))
tell("plain", lambda: rename(0))
file = os.open("file", os.O_CREAT | os.O_RDWR)
flags = bytearray(8)
tell("read flags", lambda: fcntl.ioctl(file, 0x80086601, flags) and None)
tell("set flags", lambda: fcntl.ioctl(file, 0x40086602, flags))
"#;
        let out = answers(lab, &[], script);
        let (reading, rest): (Vec<&str>, Vec<&str>) =
            out.lines().partition(|line| line.starts_with("read flags"));
        let expected = ["whiteout EPERM", "no replace ok", "plain ok", "set flags ENOTTY"];
        assert_eq!(rest, expected);
        assert_ne!(reading, ["read flags EPERM"], "whatever the file system says");
        let left: Vec<_> = std::fs::read_dir(lab.work()).unwrap().flatten().collect();
        assert!(
            left.iter()
                .all(|entry| entry.file_type().unwrap().is_file() || entry.file_name() != "from"),
            "{left:?}"
        );
    });
}

#[test]
fn sockets_have_the_types_and_options_that_programs_need_and_no_others() {
    if in_the_guest() {
        return;
    }
    each_actor(|lab| {
        let script = r#"
tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
six = socket.socket(socket.AF_INET6)
tell("reuse", lambda: tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1))
tell("nodelay", lambda: tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
tell("v6only", lambda: six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1))
tell("segment", lambda: udp.setsockopt(17, 103, 1200))
tell("ulp", lambda: tcp.setsockopt(socket.IPPROTO_TCP, 31, b"tls"))
tell("encapsulation", lambda: udp.setsockopt(17, 100, 2))
tell("filter", lambda: tcp.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 0, 0)))
tell("pairs", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
tell("raw unix", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_RAW))
tell("routes", lambda: socket.socket(16, socket.SOCK_RAW, 0))
tell("audit", lambda: socket.socket(16, socket.SOCK_RAW, 9))
tell("interfaces", lambda: print(socket.if_nameindex()[0][1]))
"#;
        let expected = "reuse ok\nnodelay ok\nv6only ok\nsegment ok\nulp ENOPROTOOPT\n\
             encapsulation ENOPROTOOPT\nfilter ENOPROTOOPT\npairs ok\nraw unix EPERM\nroutes ok\n\
             audit EPROTONOSUPPORT\nlo\ninterfaces ok\n";
        assert_eq!(answers(lab, &[], script), expected);
    });
}

#[test]
fn terminals_work_and_keep_their_line_discipline() {
    if in_the_guest() {
        return;
    }
    each_actor(|lab| {
        let script = r#"
master, slave = os.openpty()
tell("size", lambda: fcntl.ioctl(slave, termios.TIOCGWINSZ, bytes(8)) and None)
tell("raw", lambda: termios.tcsetattr(slave, termios.TCSANOW, termios.tcgetattr(slave)))
tell("queued", lambda: fcntl.ioctl(master, termios.FIONREAD, bytes(4)) and None)
tell("discipline", lambda: fcntl.ioctl(slave, termios.TIOCSETD, struct.pack("i", 2)))
tell("typing", lambda: fcntl.ioctl(slave, termios.TIOCSTI, b"x"))
"#;
        let expected = "size ok\nraw ok\nqueued ok\ndiscipline ENOTTY\ntyping EPERM\n";
        assert_eq!(answers(lab, &[], script), expected);
    });
}

/// Each name takes memory of the kernel's, which a size in bytes does not count.
#[test]
fn a_tmpfs_holds_as_many_names_as_its_size_has_pages() {
    each_actor(|lab| {
        let script = "for at in /tmp /dev/shm /small; do stat -f -c %c $at; done; \
             i=0; while mkdir /small/$i 2>/dev/null; do i=$((i+1)); done; echo $i; \
             mkdir /tmp/node_modules && echo made";
        let done = lab.sh(&["--tmpfs", "/small:size=1m"], script);
        done.expect(0);
        let lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
        assert_eq!(lines[..3], ["262144", "65536", "1024"], "{done}");
        let made: u64 = lines[3].parse().unwrap();
        assert!(made > 900 && made < 1024, "{done}");
        assert_eq!(lines[4], "made");
    });
}
