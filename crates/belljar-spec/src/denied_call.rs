//! System calls that the filter refused in a traced run: what is counted of each, on the wire and in the record.
//!
//! Only numbers that the filter itself looks at are kept, never memory of the process that made the call.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The filter of every command.
pub const COMMAND_FILTER: &str = "command";
/// The same rules; a refused call is reported before it is answered.
pub const TRACED_FILTER: &str = "command_traced";

/// The name of calls whose number has none.
pub const UNKNOWN_CALL: &str = "unknown";
/// What their one argument is called: the number of the call.
const UNKNOWN_NUMBER: &str = "number";

/// The longest name of a call that is accepted from inside.
const MAX_NAME: usize = 40;

/// One argument of a call that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptArgument {
    pub name: &'static str,
    /// Which of the six.
    pub index: usize,
    /// The bits that decide.
    pub mask: u64,
}

const INT: u64 = 0xffff_ffff;
/// Every flag that asks for a new namespace.
const NAMESPACES: u64 = 0x7e02_0080;
/// The same without CLONE_NEWTIME: in `clone` these bits are a signal.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;
const SET_ID_BITS: u64 = 0o6000;
const NODE_TYPE_AND_SET_ID_BITS: u64 = 0o176_000;

macro_rules! kept_arguments {
    ($($($call:literal)|+ => $($name:literal [$index:literal] & $mask:expr),+;)*) => {
        /// What is kept of a call's arguments. Nothing of a call that is not here.
        pub fn kept_arguments(call: &str) -> &'static [KeptArgument] {
            match call {
                $($($call)|+ => &[$(KeptArgument { name: $name, index: $index, mask: $mask }),+],)*
                _ => &[],
            }
        }
    };
}

kept_arguments! {
    "socket" => "family"[0] & INT, "type"[1] & 0xf, "protocol"[2] & INT;
    "socketpair" => "family"[0] & INT, "type"[1] & 0xf;
    "setsockopt" => "level"[1] & INT, "option"[2] & INT;
    "ioctl" => "request"[1] & INT;
    "fcntl" => "command"[1] & INT;
    "clone" => "flags"[0] & CLONE_NAMESPACES;
    "unshare" => "flags"[0] & NAMESPACES;
    "setns" => "flags"[1] & NAMESPACES;
    "personality" => "persona"[0] & INT;
    "prlimit64" => "resource"[1] & INT;
    "setrlimit" => "resource"[0] & INT;
    "keyctl" => "operation"[0] & INT;
    "bpf" => "command"[0] & INT;
    "renameat2" => "flags"[4] & INT;
    "chmod" | "creat" | "mkdir" | "fchmod" => "mode"[1] & SET_ID_BITS;
    "open" | "fchmodat" | "fchmodat2" | "mkdirat" => "mode"[2] & SET_ID_BITS;
    "openat" => "mode"[3] & SET_ID_BITS;
    "mknod" => "mode"[1] & NODE_TYPE_AND_SET_ID_BITS;
    "mknodat" => "mode"[2] & NODE_TYPE_AND_SET_ID_BITS;
}

/// How often a call was refused in the same way, as PID 1 reports it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeniedCall {
    pub name: String,
    /// The error that it was answered with, as a number.
    pub errno: u16,
    /// The values of [`kept_arguments()`], in order. Empty where there were too many different ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<u64>,
}

impl DeniedCall {
    /// Whether PID 1 can have sent it: a name of a call, an error that filters give, and the arguments of that call.
    pub fn is_plausible(&self) -> bool {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let names = self.argument_names();
        !self.name.is_empty()
            && self.name.len() <= MAX_NAME
            && self.name.bytes().all(is_name)
            && (1..4096).contains(&self.errno)
            && (self.args.is_empty() || self.args.len() == names.len())
    }

    /// The names of the arguments that are kept of it.
    pub fn argument_names(&self) -> Vec<&'static str> {
        match self.name.as_str() {
            UNKNOWN_CALL => vec![UNKNOWN_NUMBER],
            name => kept_arguments(name).iter().map(|kept| kept.name).collect(),
        }
    }

    /// As the record has it.
    pub fn counted(&self, count: u64) -> SyscallDenied {
        let args = self.argument_names().into_iter().map(str::to_owned).zip(self.args.clone());
        SyscallDenied {
            name: self.name.clone(),
            errno: errno_name(self.errno),
            args: args.collect(),
            count,
        }
    }
}

/// The number of equal calls since the last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedCallCount {
    pub call: DeniedCall,
    pub count: u64,
}

/// Counts refused calls. Their number is bounded: past the first few different arguments of a call, the others are
/// counted without.
#[derive(Clone, Debug, Default)]
pub struct DeniedCounts(BTreeMap<DeniedCall, u64>);

/// Different arguments that are told apart, for each name and error.
const MAX_DIFFERENT: usize = 8;

impl DeniedCounts {
    pub fn add(&mut self, call: &DeniedCall, count: u64) {
        let key = self.key(call);
        let sum = self.0.entry(key).or_default();
        *sum = sum.saturating_add(count);
    }

    fn key(&self, call: &DeniedCall) -> DeniedCall {
        if call.args.is_empty() || self.0.contains_key(call) {
            return call.clone();
        }
        // The first of its name and error in the order of the map.
        let plain = DeniedCall { args: Vec::new(), ..call.clone() };
        let same = |known: &&DeniedCall| known.name == call.name && known.errno == call.errno;
        let different = self.0.range(&plain..).map(|(known, _)| known).take_while(same).count();
        if different < MAX_DIFFERENT { call.clone() } else { plain }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many calls are told apart.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them; none is left.
    pub fn take(&mut self) -> Vec<DeniedCallCount> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(call, count)| DeniedCallCount { call, count }).collect()
    }

    /// Those that occurred since the last time. They stay known, with a count of 0.
    pub fn take_new(&mut self) -> Vec<DeniedCallCount> {
        let new = self.0.iter_mut().filter(|(_, count)| **count > 0);
        new.map(|(call, count)| DeniedCallCount {
            call: call.clone(),
            count: std::mem::take(count),
        })
        .collect()
    }

    /// Counts calls that are known, for [`Self::take_new`]. The first of their kind are returned, and known from then
    /// on.
    pub fn add_known(&mut self, call: &DeniedCall, count: u64) -> Option<DeniedCallCount> {
        let call = self.key(call);
        match self.0.get_mut(&call) {
            Some(sum) => {
                *sum = sum.saturating_add(count);
                None
            }
            None => {
                self.0.insert(call.clone(), 0);
                Some(DeniedCallCount { call, count })
            }
        }
    }
}

/// The data of a `syscall.denied` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyscallDenied {
    pub name: String,
    /// By name, such as `EPERM`.
    pub errno: String,
    /// The arguments that decided, where the filter looks at them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, u64>,
    /// How often since the last such event.
    pub count: u64,
}

/// The errors that the filter answers with; any other by its number.
fn errno_name(errno: u16) -> String {
    let name = match errno {
        1 => "EPERM",
        22 => "EINVAL",
        25 => "ENOTTY",
        38 => "ENOSYS",
        92 => "ENOPROTOOPT",
        93 => "EPROTONOSUPPORT",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, errno: u16, args: &[u64]) -> DeniedCall {
        DeniedCall { name: name.to_owned(), errno, args: args.to_vec() }
    }

    #[test]
    fn the_record_has_names_of_errors_and_arguments() {
        let denied = call("socket", 1, &[40, 1, 0]).counted(3);
        let json = serde_json::to_value(&denied).unwrap();
        let expected = serde_json::json!({
            "name": "socket", "errno": "EPERM", "count": 3,
            "args": { "family": 40, "type": 1, "protocol": 0 },
        });
        assert_eq!(json, expected);
        let json = serde_json::to_value(call("mount", 1, &[]).counted(1)).unwrap();
        assert_eq!(json, serde_json::json!({ "name": "mount", "errno": "EPERM", "count": 1 }));
        let unknown = call(UNKNOWN_CALL, 38, &[5000]).counted(1);
        assert_eq!((unknown.errno.as_str(), unknown.args["number"]), ("ENOSYS", 5000));
    }

    #[test]
    fn what_pid_1_cannot_have_sent_is_found() {
        for good in [call("mount", 1, &[]), call("socket", 1, &[1, 2, 3]), call("socket", 1, &[])] {
            assert!(good.is_plausible(), "{good:?}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for bad in [
            call("", 1, &[]),
            call(&long, 1, &[]),
            call("mount\n", 1, &[]),
            call("mount", 0, &[]),
            call("mount", 4096, &[]),
            call("mount", 1, &[7]),
            call("socket", 1, &[1]),
        ] {
            assert!(!bad.is_plausible(), "{bad:?}");
        }
    }

    #[test]
    fn different_calls_are_bounded_and_no_count_is_lost() {
        let mut counts = DeniedCounts::default();
        for number in 0..10_000 {
            counts.add(&call("ioctl", 25, &[number]), 1);
            counts.add(&call("ioctl", 1, &[0x5412]), 1);
            counts.add(&call("mount", 1, &[]), 2);
        }
        assert_eq!(counts.len(), MAX_DIFFERENT + 1 + 1 + 1);
        assert_eq!(counts.add_known(&call("ioctl", 25, &[3]), 1), None, "one of the first");
        assert_eq!(counts.add_known(&call("ioctl", 25, &[77_777]), 1), None, "with the others");
        let first = counts.add_known(&call("bpf", 1, &[3]), 5);
        assert_eq!(first.map(|first| first.count), Some(5));
        assert_eq!(counts.add_known(&call("bpf", 1, &[3]), 1), None);
        let sum = |all: &[DeniedCallCount]| all.iter().map(|one| one.count).sum::<u64>();
        assert_eq!(sum(&counts.take_new()), 40_003);
        assert_eq!(counts.take_new(), []);
        counts.add(&call("ioctl", 25, &[5]), 1);
        counts.add(&call("ioctl", 25, &[88_888]), 1);
        let new = counts.take_new();
        assert_eq!((new.len(), sum(&new)), (2, 2));
        assert_eq!(counts.len(), MAX_DIFFERENT + 4);
        assert_eq!(counts.take().len(), MAX_DIFFERENT + 4);
        assert!(counts.is_empty());
    }

    #[test]
    fn every_error_of_the_filters_has_a_name() {
        for errno in [1, 22, 25, 38, 92, 93] {
            assert!(errno_name(errno).starts_with('E'), "{errno}");
        }
        assert_eq!(errno_name(5), "errno 5");
    }
}
