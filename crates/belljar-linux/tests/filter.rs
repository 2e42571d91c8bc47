//! The system call filter, compiled for every processor that has a table, and run by a small
//! interpreter: the kernel's verdicts, without a kernel.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../build/filter_program.rs"]
#[allow(unreachable_pub)]
mod filter_program;
#[path = "../build/filter_source.rs"]
#[allow(unreachable_pub)]
mod filter_source;

use std::collections::BTreeMap;

use filter_source::Verdict;

const SOURCE: &str = include_str!("../filters/command.filter");
const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const AARCH64: u32 = 0xc000_00b7;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const EPERM: u32 = 0x0005_0001;
const EINVAL: u32 = 0x0005_0016;
const ENOTTY: u32 = 0x0005_0019;
const ENOSYS: u32 = 0x0005_0026;
const ENOPROTOOPT: u32 = 0x0005_005c;
const EPROTONOSUPPORT: u32 = 0x0005_005d;

struct Filter {
    program: Vec<u8>,
    arch: u32,
    number: fn(&str) -> u32,
}

fn x86_64() -> Filter {
    let number = |name: &str| name.parse::<syscalls::x86_64::Sysno>().unwrap().id() as u32;
    compile("x86_64", X86_64, number)
}

fn aarch64() -> Filter {
    let number = |name: &str| name.parse::<syscalls::aarch64::Sysno>().unwrap().id() as u32;
    compile("aarch64", AARCH64, number)
}

fn compile(name: &str, arch: u32, number: fn(&str) -> u32) -> Filter {
    let verdicts = filter_source::parse(SOURCE, name).unwrap();
    let verdicts: BTreeMap<u32, Verdict> =
        verdicts.into_iter().map(|(name, verdict)| (number(&name), verdict)).collect();
    let program = filter_program::compile(&verdicts, arch, arch == X86_64).unwrap();
    Filter { program, arch, number }
}

impl Filter {
    fn answer(&self, call: &str, args: &[u64]) -> u32 {
        self.raw(self.arch, (self.number)(call), args)
    }

    /// What the kernel's interpreter does, for the instructions we use.
    fn raw(&self, arch: u32, number: u32, args: &[u64]) -> u32 {
        let mut data = [0_u32; 16];
        (data[0], data[1]) = (number, arch);
        for (at, arg) in args.iter().enumerate() {
            (data[4 + 2 * at], data[5 + 2 * at]) = (*arg as u32, (*arg >> 32) as u32);
        }
        let (mut at, mut value) = (0, 0);
        loop {
            let raw = &self.program[8 * at..8 * at + 8];
            let code = u16::from_ne_bytes([raw[0], raw[1]]);
            let k = u32::from_ne_bytes([raw[4], raw[5], raw[6], raw[7]]);
            let branch = |taken: bool| usize::from(if taken { raw[2] } else { raw[3] });
            at += 1;
            match code {
                0x20 => value = data[k as usize / 4],
                0x54 => value &= k,
                0x05 => at += k as usize,
                0x15 => at += branch(value == k),
                0x35 => at += branch(value >= k),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }
}

#[test]
fn plain_calls_pass_dangerous_ones_do_not_and_unknown_ones_are_not_there() {
    for filter in [x86_64(), aarch64()] {
        for call in ["read", "write", "openat", "execve", "exit_group", "futex", "ptrace", "mmap"] {
            assert_eq!(filter.answer(call, &[]), ALLOW, "{call}");
        }
        for call in ["mount", "bpf", "setns", "io_uring_setup", "keyctl", "reboot", "pidfd_getfd"] {
            assert_eq!(filter.answer(call, &[]), EPERM, "{call}");
        }
        for call in ["clone3", "openat2", "listmount", "statmount"] {
            assert_eq!(filter.answer(call, &[]), ENOSYS, "{call}");
        }
        for number in [5000, 100_000, 0x3fff_ffff, u32::MAX] {
            assert_eq!(filter.raw(filter.arch, number, &[]), ENOSYS, "{number}");
        }
    }
}

#[test]
fn another_processor_mode_ends_the_process() {
    let filter = x86_64();
    assert_eq!(filter.raw(I386, 4, &[]), KILL);
    assert_eq!(filter.raw(AARCH64, 64, &[]), KILL);
    assert_eq!(filter.raw(X86_64, 0x4000_0001, &[]), KILL, "x32 write");
    assert_eq!(filter.raw(X86_64, 1, &[]), ALLOW, "control: write");
}

#[test]
fn arguments_decide_where_they_must() {
    for filter in [x86_64(), aarch64()] {
        let socket = |domain, kind, protocol| filter.answer("socket", &[domain, kind, protocol]);
        for allowed in
            [(1, 1, 0), (2, 1, 0), (2, 2, 17), (10, 1, 6), (16, 3, 0), (2, 1 | 0o2000000, 6)]
        {
            assert_eq!(socket(allowed.0, allowed.1, allowed.2), ALLOW, "{allowed:?}");
        }
        // vsock, packet, raw, SCTP; and the high half, which the kernel does not look at.
        for denied in
            [(40, 1, 0), (17, 3, 0), (2, 3, 1), (2, 5, 0), (2, 1, 132), (1 << 32 | 40, 1, 0)]
        {
            assert_eq!(socket(denied.0, denied.1, denied.2), EPERM, "{denied:?}");
        }
        assert_eq!(filter.answer("fchmodat", &[0, 0, 0o755]), ALLOW);
        assert_eq!(filter.answer("fchmodat", &[0, 0, 0o4755]), EPERM);
        assert_eq!(filter.answer("fchmodat", &[0, 0, 0o2755]), EPERM);
        assert_eq!(filter.answer("fchmod", &[3, 0o6755]), EPERM);
        assert_eq!(filter.answer("openat", &[0, 0, 0o101, 0o644]), ALLOW);
        assert_eq!(filter.answer("openat", &[0, 0, 0o101, 0o4644]), EPERM);
        assert_eq!(filter.answer("mknodat", &[0, 0, 0o010644, 0]), ALLOW, "a FIFO");
        assert_eq!(filter.answer("mknodat", &[0, 0, 0o020000, 0]), EPERM, "a whiteout");
        for request in [0x5412, 0x541c, 0x1_0000_5412_u64] {
            assert_eq!(filter.answer("ioctl", &[0, request]), EPERM, "{request:#x}");
        }
        assert_eq!(filter.answer("ioctl", &[0, 0x5401]), ALLOW);
        // Of an unknown netlink protocol: what libaudit's callers take for a kernel without it.
        for protocol in [4, 9, 12, 15, 16, 1 << 32 | 9] {
            assert_eq!(socket(16, 3, protocol), EPROTONOSUPPORT, "{protocol}");
        }
        for denied in [(1, 3, 0), (1, 10, 0), (10, 4, 0), (16, 1, 0)] {
            assert_eq!(socket(denied.0, denied.1, denied.2), EPERM, "{denied:?}");
        }
        for kind in [1, 2, 5, 1 | 0o2004000] {
            assert_eq!(socket(1, kind, 0), ALLOW, "{kind:o}");
            assert_eq!(filter.answer("socketpair", &[1, kind]), ALLOW, "{kind:o}");
        }
        assert_eq!(filter.answer("socketpair", &[1, 3]), EPERM);
        assert_eq!(filter.answer("clone", &[0x0100_0000 | 17]), ALLOW);
        for flag in
            [0x1000_0000_u64, 0x0002_0000, 0x2000_0000, 0x4000_0000, 0x0800_0000, 0x0200_0000]
        {
            assert_eq!(filter.answer("clone", &[flag | 17]), EPERM, "{flag:#x}");
            assert_eq!(filter.answer("unshare", &[flag | 1 << 40]), EPERM, "{flag:#x}");
        }
        assert_eq!(
            filter.answer("prlimit64", &[0, 4, 0, 0x1000]),
            ALLOW,
            "asking for the core limit"
        );
        assert_eq!(filter.answer("prlimit64", &[0, 4, 0x1000, 0]), EPERM, "changing it");
        assert_eq!(filter.answer("prlimit64", &[0, 4, 1 << 40, 0]), EPERM, "a pointer above 4 GiB");
        assert_eq!(filter.answer("prlimit64", &[0, 7, 0x1000, 0]), ALLOW, "another limit");
        assert_eq!(filter.answer("personality", &[0xffff_ffff]), ALLOW);
        assert_eq!(filter.answer("personality", &[0x0040_0000]), EPERM);
    }
}

/// With something in the high half, which the kernel does not look at.
fn with_high_half(value: u64) -> [u64; 2] {
    [value, value | 7 << 32]
}

#[test]
fn commands_requests_and_options_that_are_not_listed_are_refused() {
    for filter in [x86_64(), aarch64()] {
        // F_SETLEASE, F_NOTIFY, F_CANCELLK, and what a newer kernel may have.
        for command in [1024, 1026, 1029, 1039, 18, 5000].into_iter().flat_map(with_high_half) {
            assert_eq!(filter.answer("fcntl", &[3, command, 1]), EINVAL, "fcntl {command:#x}");
        }
        for command in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 36, 37, 38] {
            assert_eq!(filter.answer("fcntl", &[3, command]), ALLOW, "fcntl {command}");
        }
        for command in [1025, 1027, 1030, 1031, 1032, 1033, 1034, 1036].map(|c| c | 7 << 32) {
            assert_eq!(filter.answer("fcntl", &[3, command]), ALLOW, "fcntl {command:#x}");
        }

        for flags in [4, 5, 6].into_iter().flat_map(with_high_half) {
            assert_eq!(filter.answer("renameat2", &[0, 0, 0, 0, flags]), EPERM, "{flags:#x}");
        }
        for flags in [0, 1, 2] {
            assert_eq!(filter.answer("renameat2", &[0, 0, 0, 0, flags]), ALLOW, "{flags:#x}");
        }

        // TIOCSETD, TIOCCONS, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FIFREEZE, FITRIM, BTRFS snapshot, SIOCSIFADDR,
        // KVM_CREATE_VM, NS_GET_USERNS, FS_IOC_FIEMAP.
        let requests = [
            0x5423,
            0x541d,
            0x4008_6602,
            0x401c_5820,
            0xc004_5877,
            0xc018_5879,
            0x5000_9401,
            0x8916,
            0xae01,
            0xb701,
            0xc020_660b,
        ];
        for request in requests.into_iter().flat_map(with_high_half) {
            assert_eq!(filter.answer("ioctl", &[0, request]), ENOTTY, "ioctl {request:#x}");
        }
        // TCGETS, TIOCGWINSZ, FIONREAD, TCSETS2, TIOCGPTPEER, SIOCGIFCONF, FICLONE, FS_IOC_GETFLAGS, FIOCLEX.
        let requests =
            [0x5401, 0x5413, 0x541b, 0x402c_542b, 0x5441, 0x8912, 0x4004_9409, 0x8008_6601, 0x5451];
        for request in requests.into_iter().flat_map(with_high_half) {
            assert_eq!(filter.answer("ioctl", &[0, request]), ALLOW, "ioctl {request:#x}");
        }

        let option = |level, name| filter.answer("setsockopt", &[3, level, name]);
        // SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF, IP_XFRM_POLICY, IPT_SO_SET_REPLACE, MCAST_MSFILTER,
        // TCP_REPAIR, TCP_ULP, TCP_MD5SIG, UDP_ENCAP, IPV6_ADDRFORM, IP6T_SO_SET_REPLACE, SOL_TLS, SOL_PACKET, SCTP.
        for (level, name) in [
            (1, 26),
            (1, 50),
            (1, 52),
            (0, 17),
            (0, 64),
            (0, 48),
            (6, 19),
            (6, 31),
            (6, 14),
            (17, 100),
            (41, 1),
            (41, 64),
            (282, 1),
            (263, 1),
            (132, 1),
            (7 << 32 | 6, 31),
            (6, 7 << 32 | 31),
        ] {
            assert_eq!(option(level, name), ENOPROTOOPT, "option {name} of level {level}");
        }
        // SO_REUSEADDR, SO_REUSEPORT, SO_PASSCRED, IP_MTU_DISCOVER, TCP_NODELAY, TCP_USER_TIMEOUT, UDP_SEGMENT, UDP_GRO,
        // IPV6_V6ONLY, IPV6_RECVPKTINFO, NETLINK_EXT_ACK.
        for (level, name) in [
            (1, 2),
            (1, 15),
            (1, 16),
            (0, 10),
            (6, 1),
            (6, 18),
            (17, 103),
            (17, 104),
            (41, 26),
            (41, 49),
            (270, 11),
        ] {
            assert_eq!(option(level, name), ALLOW, "option {name} of level {level}");
        }
    }
}

/// The kernel looks at every call number when a filter is loaded, and compiles every instruction.
#[test]
fn the_program_stays_small() {
    for filter in [x86_64(), aarch64()] {
        let instructions = filter.program.len() / 8;
        println!("{instructions} instructions");
        assert!(instructions < 700, "{instructions}");
    }
}

#[test]
fn a_filter_file_that_makes_no_sense_says_where() {
    for (source, problem) in [
        ("allow read\nallow read", "line 2"),
        ("permit read", "neither"),
        ("deny socket when arg0 == 1", "not allowed before"),
        ("allow socket\ndeny socket when arg9 == 1", "line 2"),
        ("allow socket\ndeny socket when arg0 ~ 1", "not a condition"),
        ("allow", "names no call"),
        ("allow ioctl\ndeny ioctl when arg1 not in nothing", "no set"),
        ("set some 1 1\nallow ioctl\ndeny ioctl when arg1 not in some", "twice"),
        ("set some 3-1\nallow ioctl\ndeny ioctl when arg1 not in some", "not a range"),
        ("set some 0x100000000", "32 bits"),
        ("allow ioctl\ndeny ioctl when arg1 == 1 answer ESOMETHING", "not an error name"),
    ] {
        let error = filter_source::parse(source, "x86_64").unwrap_err();
        assert!(error.contains(problem), "{source}: {error}");
    }
    assert!(
        filter_source::parse("allow socket\ndeny socket when arg0 == 1", "x86_64").is_ok(),
        "control"
    );
}
