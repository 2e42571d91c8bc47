//! Attacks on what the kernel counts per user and not per run.
//!
//! While a run uses as much as it can get, another process of the same user on the host must still get its share.

use belljar_spec::Clause;
use rustix::process::{Resource, getrlimit};

use crate::case::{Case, Severity, Verdict};
use crate::probe_report::{AttemptResult, ProbeReport};
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

macro_rules! counter_cases {
    ($($name:literal, $attack:literal, $counter:ident;)*) => {
        pub(super) const CASES: &[Case] = &[$(Case {
            name: $name,
            attack: $attack,
            clause: Clause::IdUnique,
            severity: Severity::High,
            run: |testbed| use_up(testbed, &$counter),
        },)*];
    };
}

counter_cases! {
    "limit.inotify-instances", "take every inotify instance of the user", INSTANCES;
    "limit.inotify-watches", "take every inotify watch of the user", WATCHES;
    "limit.pending-signals", "make timers until the user has no pending signal left", SIGNALS;
    "limit.in-flight", "send descriptors and never receive them, until the user may send no more", IN_FLIGHT;
    "limit.epoll-watches", "take every epoll watch of the user", EPOLL;
    "limit.message-queues", "take all room for message queues of the user", QUEUES;
    "limit.locked-memory", "take all memory that the user may lock", LOCKED;
}

/// One thing that is counted.
struct Counter {
    kind: &'static str,
    /// How much the user has of it here.
    allowance: fn() -> Allowance,
    /// More than this takes too long, and too much of the machine.
    most: u64,
    control: CounterControl,
}

enum Allowance {
    Of(u64),
    Unlimited,
}

/// How the same is shown without a sandbox and without taking it from anybody.
enum CounterControl {
    /// By a lower limit of its own.
    Limited(&'static str),
    /// As an unused uid, which needs root: there is no limit to lower.
    AsNobodyElse,
}

const INSTANCES: Counter = Counter {
    kind: "inotify-instances",
    allowance: || knob("/proc/sys/user/max_inotify_instances"),
    most: MAX_COUNT,
    control: CounterControl::Limited("8"),
};
const WATCHES: Counter = Counter {
    kind: "inotify-watches",
    allowance: || knob("/proc/sys/user/max_inotify_watches"),
    most: MAX_COUNT,
    control: CounterControl::Limited("64"),
};
const SIGNALS: Counter = Counter {
    kind: "pending-signals",
    allowance: || rlimit(Resource::Sigpending),
    most: MAX_COUNT,
    control: CounterControl::Limited("16"),
};
const IN_FLIGHT: Counter = Counter {
    kind: "descriptors-in-flight",
    allowance: || rlimit(Resource::Nofile),
    most: MAX_COUNT,
    control: CounterControl::Limited("300"),
};
const EPOLL: Counter = Counter {
    kind: "epoll-watches",
    allowance: || knob("/proc/sys/fs/epoll/max_user_watches"),
    most: MAX_COUNT,
    control: CounterControl::AsNobodyElse,
};
const QUEUES: Counter = Counter {
    kind: "message-queues",
    allowance: || rlimit(Resource::Msgqueue),
    most: MAX_COUNT,
    control: CounterControl::Limited("200000"),
};
const LOCKED: Counter = Counter {
    kind: "locked-memory",
    allowance: || rlimit(Resource::Memlock),
    most: MAX_BYTES,
    control: CounterControl::Limited("131072"),
};

fn knob(path: &str) -> Allowance {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().map_or(Allowance::Unlimited, Allowance::Of)
}

fn rlimit(resource: Resource) -> Allowance {
    getrlimit(resource).maximum.map_or(Allowance::Unlimited, Allowance::Of)
}

const MAX_COUNT: u64 = 2_000_000;
const MAX_BYTES: u64 = 256 << 20;
/// A user that no system has.
const NOBODY_ELSE: &str = "2147480000";

fn use_up(testbed: &TestBed, counter: &Counter) -> Result<Verdict, TestBedError> {
    let all = match (counter.allowance)() {
        Allowance::Of(all) if all < counter.most => all,
        Allowance::Of(_) | Allowance::Unlimited => {
            return Ok(Verdict::not_tried("here a user has more of it than a run could take"));
        }
    };
    let kind = counter.kind;
    let workspace = testbed.workspace()?;
    let most = (all + all / 8 + 300).to_string();
    let mut running =
        testbed.start_inside(&Run::of(&workspace, "take").args([kind, &most, "20000"]))?;
    let greedy = running.report()?;
    let neighbour = testbed.neighbour(["take", kind, "1", "0"])?.report()?;
    running.stop()?;
    let taken = greedy.number("taken");
    if !got_one(&neighbour) {
        let alone = testbed.neighbour(["take", kind, "1", "0"])?.report()?;
        if !got_one(&alone) {
            return Ok(Verdict::no_control("without the run, the user gets none either"));
        }
        return starved(testbed, counter, taken);
    }
    let (what, control) = match counter.control {
        CounterControl::Limited(limit) => {
            let argv = ["take", kind, "100000", "0", limit];
            ("with a limit", testbed.outside(Unprotected::MappedScratch, argv)?.report()?)
        }
        CounterControl::AsNobodyElse if testbed.is_root() => {
            let argv = ["take", kind, &most, "0"];
            ("as another user", testbed.as_user(NOBODY_ELSE, argv)?.report()?)
        }
        CounterControl::AsNobodyElse => {
            return Ok(Verdict::no_control("only root can be another user for the control"));
        }
    };
    if control.answer("another process") == Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control(format!("outside, {what}, another process got one too")));
    }
    let stopped = match greedy.answer("take") {
        Some(AttemptResult::Succeeded) | None => format!("the run took {taken}"),
        Some(answer) => format!("the run was stopped at {taken} of {all} ({answer})"),
    };
    Ok(Verdict::held(format!("{stopped}; a process of its user got its own")))
}

fn got_one(report: &ProbeReport) -> bool {
    report.answer("take") == Some(AttemptResult::Succeeded)
}

/// The kernel has no limit for epoll but the user's, and an engine's containers have the limits that it gives them:
/// there only a separate uid isolates a run.
fn starved(testbed: &TestBed, counter: &Counter, taken: u64) -> Result<Verdict, TestBedError> {
    let by_user_alone =
        matches!(counter.control, CounterControl::AsNobodyElse) || testbed.has_image();
    match testbed.promise(Clause::IdUnique, &[])? {
        Err(why) if by_user_alone => Ok(Verdict::NotPromised { why }),
        _ => Ok(Verdict::broke(format!(
            "a run took {taken}, and a process of its user on the host got none"
        ))),
    }
}
