//! What refused system calls are for, in plain words.

use std::collections::BTreeMap;

type Args = BTreeMap<String, u64>;

const NAMESPACES: &[(u64, &str)] = &[
    (0x1000_0000, "CLONE_NEWUSER"),
    (0x0002_0000, "CLONE_NEWNS"),
    (0x2000_0000, "CLONE_NEWPID"),
    (0x4000_0000, "CLONE_NEWNET"),
    (0x0800_0000, "CLONE_NEWIPC"),
    (0x0400_0000, "CLONE_NEWUTS"),
    (0x0200_0000, "CLONE_NEWCGROUP"),
    (0x0000_0080, "CLONE_NEWTIME"),
];

const FAMILIES: &[(u64, &str)] = &[
    (1, "AF_UNIX"),
    (2, "AF_INET"),
    (10, "AF_INET6"),
    (16, "AF_NETLINK"),
    (17, "AF_PACKET"),
    (29, "AF_CAN"),
    (31, "AF_BLUETOOTH"),
    (38, "AF_ALG"),
    (40, "AF_VSOCK"),
    (44, "AF_XDP"),
];

/// The call with the arguments that decided, in the order in which the call takes them.
pub(super) fn call(name: &str, args: &Args) -> String {
    let kept = belljar_spec::denied_call::kept_arguments(name).iter();
    let known: Vec<&str> = kept.map(|kept| kept.name).collect();
    let place = |arg: &str| known.iter().position(|known| *known == arg).unwrap_or(known.len());
    let mut args: Vec<(&String, &u64)> = args.iter().collect();
    args.sort_by_key(|(arg, _)| place(arg));
    if args.is_empty() {
        return name.to_owned();
    }
    let texts: Vec<String> = args
        .into_iter()
        .map(|(arg, value)| format!("{arg}={}", value_text(name, arg, *value)))
        .collect();
    format!("{name}({})", texts.join(", "))
}

fn value_text(name: &str, arg: &str, value: u64) -> String {
    match (name, arg) {
        ("clone" | "unshare" | "setns", "flags") => {
            let set = NAMESPACES.iter().filter(|(bit, _)| value & bit != 0);
            let names: Vec<&str> = set.map(|(_, name)| *name).collect();
            if names.is_empty() { value.to_string() } else { names.join("|") }
        }
        ("socket" | "socketpair", "family") => {
            let known = FAMILIES.iter().find(|(family, _)| *family == value);
            known.map_or_else(|| value.to_string(), |(_, name)| (*name).to_owned())
        }
        (_, "mode") => format!("{value:#o}"),
        ("ioctl", _) | (_, "flags" | "persona") => format!("{value:#x}"),
        _ => value.to_string(),
    }
}

/// What the call is for, and why it is refused.
pub(super) fn explanation(name: &str, errno: &str, args: &Args) -> String {
    let text = match name {
        "clone" | "unshare" | "setns" => {
            "new namespaces are not allowed inside: nested sandboxes and containers do not work; programs such as browsers have a flag for no sandbox of their own"
        }
        "mount" | "umount2" | "pivot_root" | "chroot" | "fsopen" | "fsconfig" | "fsmount"
        | "fspick" | "move_mount" | "open_tree" | "mount_setattr" => {
            "mounting: what is visible is decided before the run starts"
        }
        "socket" | "socketpair" => return socket(args),
        "setsockopt" => "an option of a socket that is not on the list; programs work without it",
        "io_uring_setup" | "io_uring_enter" | "io_uring_register" => {
            "io_uring, a fast way of input and output; programs fall back to the ordinary calls"
        }
        "io_setup" | "io_submit" | "io_getevents" | "io_destroy" | "io_cancel"
        | "io_pgetevents" => {
            "the old asynchronous input and output, whose contexts are counted for the whole machine; databases have a setting for ordinary calls"
        }
        "perf_event_open" => {
            "performance counters of the processor and the kernel: profilers such as perf do not work inside"
        }
        "bpf" => "programs in the kernel: tools on eBPF do not work inside",
        "keyctl" | "add_key" | "request_key" => {
            "keys stored in the kernel, which are the user's and not the run's"
        }
        "userfaultfd" => {
            "page faults handled by the program: used to move running programs and by some virtual machines"
        }
        "kcmp" | "pidfd_getfd" => "comparing or taking descriptors of other processes",
        "open_by_handle_at" | "name_to_handle_at" | "lookup_dcookie" => {
            "opening files by a handle, past their path"
        }
        "fanotify_init" | "fanotify_mark" => "watching whole file systems; inotify works",
        "memfd_secret" => "memory that the kernel itself cannot read",
        "move_pages" | "migrate_pages" => "moving memory between processors",
        "personality" => "another execution domain",
        "prlimit64" | "setrlimit" => {
            "the size of core files and the limits of PID 1 are not the run's to change"
        }
        "sched_setaffinity" | "sched_setscheduler" | "sched_setparam" | "sched_setattr"
        | "setpriority" | "ioprio_set" => {
            "PID 1, a whole user or a process group given another share of the processors"
        }
        "chmod" | "fchmod" | "fchmodat" | "fchmodat2" | "open" | "openat" | "creat" | "mkdir"
        | "mkdirat" => {
            "the setuid or setgid bit: such a file would outlive the run in the host's tree"
        }
        "mknod" | "mknodat" => "device nodes and files with the setuid or setgid bit",
        "renameat2" => "a rename that leaves a whiteout, a device node, behind",
        "ioctl" => "a request that is not on the list; nothing was done",
        "fcntl" => {
            "a command that is not on the list: leases and notices make programs on the host wait"
        }
        "clone3" => "programs start processes and threads by clone instead, by themselves",
        "openat2" => "programs open files by openat instead, by themselves",
        "init_module" | "finit_module" | "delete_module" | "create_module" | "query_module"
        | "kexec_load" | "kexec_file_load" | "reboot" | "swapon" | "swapoff" | "acct"
        | "syslog" | "settimeofday" | "clock_settime" | "clock_adjtime" | "adjtimex"
        | "sethostname" | "setdomainname" | "vhangup" | "quotactl" | "quotactl_fd"
        | "nfsservctl" | "iopl" | "ioperm" => "administration of the machine",
        _ if errno == "ENOSYS" => {
            "not on the list of calls; answered as by a kernel that does not have it, and programs take an older way"
        }
        _ => "not allowed inside",
    };
    text.to_owned()
}

fn socket(args: &Args) -> String {
    let value = |name: &str| args.get(name).copied();
    const SOCK_RAW: u64 = 3;
    match (value("family"), value("type")) {
        (Some(40), _) => "AF_VSOCK reaches the hypervisor and other virtual machines past the network",
        (Some(17), _) => "AF_PACKET reads and writes raw packets",
        (Some(2 | 10), Some(SOCK_RAW)) => "raw sockets; ping works by ICMP datagrams, where it can use them",
        (Some(16), _) => "of netlink only routes are allowed; programs go on without, as on a kernel that lacks it",
        _ => "sockets inside are AF_UNIX, AF_INET, AF_INET6 and, for routes, AF_NETLINK; no other family, type or protocol",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(all: &[(&str, u64)]) -> Args {
        all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn calls_are_written_with_the_names_of_their_values() {
        for (name, given, text) in [
            (
                "unshare",
                args(&[("flags", 0x1002_0000)]),
                "unshare(flags=CLONE_NEWUSER|CLONE_NEWNS)",
            ),
            (
                "socket",
                args(&[("type", 3), ("protocol", 1), ("family", 2)]),
                "socket(family=AF_INET, type=3, protocol=1)",
            ),
            (
                "socket",
                args(&[("family", 99), ("type", 1), ("protocol", 0)]),
                "socket(family=99, type=1, protocol=0)",
            ),
            ("ioctl", args(&[("request", 0xae01)]), "ioctl(request=0xae01)"),
            ("fchmod", args(&[("mode", 0o4000)]), "fchmod(mode=0o4000)"),
            ("setns", args(&[("flags", 0)]), "setns(flags=0)"),
            ("mount", args(&[]), "mount"),
            ("unknown", args(&[("number", 5000)]), "unknown(number=5000)"),
        ] {
            assert_eq!(call(name, &given), text);
        }
    }

    /// Each call that the filter names with `deny` is explained, and so is what it answers like an old kernel.
    #[test]
    fn no_call_that_the_filter_denies_is_without_an_explanation() {
        let filter = include_str!("../../../belljar-linux/filters/command.filter");
        let lines = filter.lines().map(|line| line.trim_start_matches("@x86_64 "));
        let mut seen = 0;
        for line in lines.filter_map(|line| line.strip_prefix("deny ")) {
            let names = line.split_whitespace().take_while(|word| *word != "when");
            for name in names {
                // No program of this century calls these.
                if ["lsm_set_self_attr", "uselib", "get_kernel_syms", "_sysctl"].contains(&name) {
                    continue;
                }
                seen += 1;
                assert_ne!(
                    explanation(name, "EPERM", &Args::new()),
                    "not allowed inside",
                    "{name}"
                );
            }
        }
        assert!(seen > 50, "{seen}");
        assert!(explanation("listmount", "ENOSYS", &Args::new()).contains("older way"));
    }
}
