//! Measures a call in numbers that depend little on load: system calls, syncs, page faults, context switches.

use std::fs;
use std::path::Path;

use super::strace::traced;
use super::{Call, Lab};

/// Of a whole tree of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: u64,
    pub syncs: u64,
    pub faults: u64,
    /// Voluntary ones: a busy machine adds others.
    pub switches: u64,
}

/// Calls of the standard library's own checks, which only builds with debug assertions make.
const DEBUG_ONLY: &str = "F_GETFD";

const SYNCS: [&str; 3] = ["fsync", "fdatasync", "syncfs"];

/// Runs `python3 -c COUNTED FILE belljar …` and writes what its children used.
const COUNTED: &str = "import os, resource, sys
child = os.spawnvp(os.P_WAIT, sys.argv[2], sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], 'w') as out:
    print(used.ru_minflt + used.ru_majflt, used.ru_nvcsw, file=out)
sys.exit(child)
";

impl Cost {
    /// Runs the call twice: counted by strace, and by the kernel. It must end well.
    pub fn of<'a>(lab: &'a Lab, call: impl Fn() -> Call<'a>) -> Self {
        let trace = lab.make_file("tmp/trace", "");
        traced(call(), &trace).done().expect(0);
        let used = lab.make_file("tmp/used", "");
        let wrapper = ["python3", "-c", COUNTED, used.to_str().unwrap()];
        call().through(&wrapper).done().expect(0);
        let text = fs::read_to_string(&used).unwrap();
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
        let (calls, syncs) = calls_in(&trace);
        Self { calls, syncs, faults: numbers.next().unwrap(), switches: numbers.next().unwrap() }
    }

    pub fn is_within(&self, budget: &Self) -> bool {
        self.calls <= budget.calls
            && self.syncs <= budget.syncs
            && self.faults <= budget.faults
            && self.switches <= budget.switches
    }
}

/// How many calls, and how many syncs among them, a trace has.
pub fn calls_in(trace: &Path) -> (u64, u64) {
    let text = String::from_utf8_lossy(&fs::read(trace).unwrap()).into_owned();
    let (mut calls, mut syncs) = (0, 0);
    for line in text.lines() {
        // "<... openat resumed>" is the end of a call that was counted at its beginning.
        let Some((name, arguments)) = line.split_once('(') else { continue };
        let name = name.rsplit(' ').next().unwrap_or_default();
        if name.is_empty() || line.contains(" resumed>") || arguments.contains(DEBUG_ONLY) {
            continue;
        }
        calls += 1;
        syncs += u64::from(SYNCS.contains(&name));
    }
    (calls, syncs)
}
