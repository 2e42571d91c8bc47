//! Attacks that exhaust memory, processes, disk or other resources.

use std::time::Duration;

use belljar_spec::Clause;

use super::judge::{ENOENT, EPERM, EROFS, broken, summary};
use crate::case::{Case, Severity, Verdict};
use crate::probe::{MEMORY_LIMITS, OWN_LIMIT};
use crate::probe_report::AttemptResult;
use crate::testbed::{
    Held, MemoryGroup, ProcessOutput, Run, Running, TestBed, TestBedError, Unprotected,
};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "limit.fork-bomb",
        attack: "fork until that fails",
        clause: Clause::LimitPids,
        severity: Severity::High,
        run: fork_bomb,
    },
    Case {
        name: "limit.memory-bomb",
        attack: "fill memory until that fails",
        clause: Clause::LimitMemory,
        severity: Severity::High,
        run: memory_bomb,
    },
    Case {
        name: "limit.raise-memory",
        attack: "raise its own memory limit by a control group's files, then use the memory",
        clause: Clause::LimitMemory,
        severity: Severity::High,
        run: raise_memory,
    },
    Case {
        name: "limit.inotify",
        attack: "take every inotify instance, so that other runs get none",
        clause: Clause::IdUnique,
        severity: Severity::High,
        run: inotify,
    },
];

fn fork_bomb(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const LIMIT: u64 = 64;
    const MAX_COUNT: u64 = 300;
    let flags = ["--pids-limit".to_owned(), LIMIT.to_string()];
    let promised = testbed.promise(Clause::LimitPids, &[&flags[0], &flags[1]])?;
    if let Err(why) = promised {
        return Ok(Verdict::not_tried(why));
    }
    let workspace = testbed.workspace()?;
    let most = MAX_COUNT.to_string();
    let run = Run::of(&workspace, "forks").arg(&most).flag(&flags[0]).flag(&flags[1]);
    let seen = testbed.inside(&run)?;
    let inside = seen.report()?;
    let children = inside.number("children");
    if inside.answer("fork") != Some(AttemptResult::Errno(libc::EAGAIN)) || children > LIMIT {
        return Ok(Verdict::broke(format!("{children} children with a limit of {LIMIT}")));
    }
    if seen.took > Duration::from_secs(15) {
        return Ok(Verdict::broke(format!("it took {} s", seen.took.as_secs())));
    }
    let control = testbed.outside(Unprotected::Scratch, ["forks", &most])?.report()?;
    if control.number("children") != MAX_COUNT {
        return Ok(Verdict::no_control(format!(
            "outside, {} children",
            control.number("children")
        )));
    }
    Ok(Verdict::held(format!("EAGAIN after {children} children, limit {LIMIT}")))
}

/// How much memory a run gets, and how much it then takes.
const MEMORY: [&str; 2] = ["--memory", "64m"];
const MEMORY_BYTES: u64 = 64 << 20;
const MEBIBYTES: &str = "192";
/// Less than the limit.
const SMALL: &str = "16";

fn memory_bomb(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    match testbed.held(Clause::LimitMemory, &MEMORY)? {
        Held::All => {}
        Held::Weaker(why) => return each_process_by_itself(testbed, &why),
        Held::Nothing(why) => return Ok(Verdict::not_tried(why)),
    }
    let workspace = testbed.workspace()?;
    let run = Run::of(&workspace, "fill-memory").arg(MEBIBYTES);
    let seen = match ended_by_memory(testbed, run)? {
        Ok(seen) => seen,
        Err(verdict) => return Ok(verdict),
    };
    if let Some(report) = seen.probe_report() {
        return Ok(Verdict::broke(format!("{} MiB with a limit of 64", report.get("mebibytes"))));
    }
    let control = testbed.outside(Unprotected::Directly, ["fill-memory", MEBIBYTES])?.report()?;
    if control.get("mebibytes") != MEBIBYTES {
        return Ok(Verdict::no_control("outside, it could not be filled either"));
    }
    Ok(Verdict::held("137, reason oom"))
}

/// Runs it with little memory. It must be the kernel that ends it, or the verdict is there.
fn ended_by_memory(
    testbed: &TestBed,
    run: Run,
) -> Result<Result<ProcessOutput, Verdict>, TestBedError> {
    let result = testbed.place()?.join("result.json");
    let run = MEMORY.iter().fold(run, |run, flag| run.flag(flag)).flag("--result").flag(&result);
    let seen = testbed.inside(&run)?.started()?;
    if seen.probe_report().is_some_and(|report| !report.get("mebibytes").is_empty()) {
        return Ok(Ok(seen));
    }
    let report = std::fs::read(&result).map_err(TestBedError::io("read the result"))?;
    let report: serde_json::Value = serde_json::from_slice(&report)
        .map_err(|error| TestBedError::Unexpected(format!("the result is no JSON: {error}")))?;
    if seen.code != Some(137) || report["reason"] != "oom" {
        let (end, reason) = (seen.end(), &report["reason"]);
        return Ok(Err(Verdict::broke(format!("it ended with {end}, reason {reason}"))));
    }
    Ok(Ok(seen))
}

/// Allowed to start although the limit does not hold for the whole run.
const WAIVED: [&str; 2] = ["--waive", "limit.memory=what holds of it is attacked"];

fn limited(run: Run) -> Run {
    MEMORY.iter().chain(&WAIVED).fold(run, |run, flag| run.flag(flag))
}

/// Without a control group: one process cannot pass the limit, while the run as a whole can.
fn each_process_by_itself(testbed: &TestBed, why: &str) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let fill = |mebibytes: &str| {
        testbed.inside(&limited(Run::of(&workspace, "fill-memory").arg(mebibytes)))?.started()
    };
    let seen = fill(MEBIBYTES)?;
    if let Some(report) = seen.probe_report() {
        let filled = report.get("mebibytes");
        return Ok(Verdict::broke(format!("one process filled {filled} MiB with a limit of 64")));
    }
    // It was the limit: a process that stays below it fills all it wants.
    let small = fill(SMALL)?.report()?;
    let control = testbed.outside(Unprotected::Directly, ["fill-memory", MEBIBYTES])?.report()?;
    if small.get("mebibytes") != SMALL || control.get("mebibytes") != MEBIBYTES {
        return Ok(Verdict::no_control("what is below the limit, or has none, fails too"));
    }
    Ok(Verdict::held(format!("a process over the limit ends with {}; {why}", seen.end())))
}

/// The same with the limit of each process: it cannot be raised.
fn raise_for_each_process(testbed: &TestBed, why: &str) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let run = Run::of(&workspace, "raise-memory").args(["/tmp", MEBIBYTES]);
    let seen = testbed.inside(&limited(run))?.started()?;
    let inside = seen.report()?;
    if !inside.get("mebibytes").is_empty() {
        return Ok(Verdict::broke(format!(
            "one process filled {} MiB with a limit of 64: {}",
            inside.get("mebibytes"),
            summary(&inside)
        )));
    }
    if inside.answer(OWN_LIMIT).is_none() {
        return Ok(Verdict::broke("no process has a limit of its own"));
    }
    if let Some(verdict) = broken(&inside, &[EPERM]) {
        return Ok(verdict);
    }
    let argv = ["soft-limit", &MEMORY_BYTES.to_string(), "raise-memory", "-", MEBIBYTES];
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    let raised = control.answer(OWN_LIMIT) == Some(AttemptResult::Succeeded);
    if !raised || control.get("mebibytes") != MEBIBYTES {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    Ok(Verdict::held(format!("{}; then {}; {why}", summary(&inside), seen.end())))
}

fn raise_memory(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    match testbed.held(Clause::LimitMemory, &MEMORY)? {
        Held::All => {}
        Held::Weaker(why) => return raise_for_each_process(testbed, &why),
        Held::Nothing(why) => return Ok(Verdict::not_tried(why)),
    }
    let workspace = testbed.workspace()?;
    // Where a container that has them has its own.
    let own = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"]
        .map(|at| MEMORY_LIMITS.iter().map(move |name| format!("{at}/{name}")));
    let run = Run::of(&workspace, "raise-memory").args(["/tmp", MEBIBYTES]);
    let seen = match ended_by_memory(testbed, run.args(own.into_iter().flatten()))? {
        Ok(seen) => seen,
        Err(verdict) => return Ok(verdict),
    };
    let inside = seen.report()?;
    if !inside.get("mebibytes").is_empty() {
        return Ok(Verdict::broke(format!(
            "{} MiB with a limit of 64: {}",
            inside.get("mebibytes"),
            summary(&inside)
        )));
    }
    if let Some(verdict) = broken(&inside, &[EPERM, ENOENT, EROFS]) {
        return Ok(verdict);
    }
    let group = match MemoryGroup::make(testbed, MEMORY_BYTES)? {
        Ok(group) => group,
        Err(why) => return Ok(Verdict::no_control(why)),
    };
    let place = testbed.place()?;
    // By its files where they are, and by mounting them in namespaces of its own: the host's mounts stay
    // as they are.
    let procs: Vec<String> = group.procs().iter().map(|path| path.display().to_string()).collect();
    let argv = ["in-group", &procs.join(","), "raise-memory", "-", MEBIBYTES];
    let mut control = testbed.control(Unprotected::Directly, argv);
    let control = Running::start(control.args(group.limits()), "the control")?.end()?.report()?;
    let raised = control.successes() > 0 && control.successes() == control.tries.len();
    if !raised || control.get("mebibytes") != MEBIBYTES {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    let argv = ["cgroup-mount".as_ref(), place.as_os_str()];
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    let mounted = ["mount cgroup", "mount cgroup2"].map(|what| control.answer(what));
    if !mounted.contains(&Some(AttemptResult::Succeeded)) {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    Ok(Verdict::held(format!("{}; 137, reason oom", summary(&inside))))
}

fn inotify(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let mut running =
        testbed.start_inside(&Run::of(&workspace, "inotify").args(["4096", "20000"]))?;
    let greedy = running.report()?;
    let modest = testbed.inside(&Run::of(&workspace, "inotify").args(["1", "0"]))?.report()?;
    running.stop()?;
    if modest.successes() != 2 {
        if let Err(why) = testbed.promise(Clause::IdUnique, &[])? {
            return Ok(Verdict::NotPromised { why });
        }
        return Ok(Verdict::broke(format!(
            "a run took {} instances, and another got {}",
            greedy.number("instances"),
            modest.number("instances")
        )));
    }
    if testbed.kernel_is_separate()
        && greedy.answer("inotify_init") == Some(AttemptResult::Succeeded)
    {
        let count = greedy.number("instances");
        return Ok(Verdict::held(format!("{count} of its own kernel; another run got its own")));
    }
    if greedy.answer("inotify_init") == Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("the greedy run never came to its limit"));
    }
    // Where both share a limit, the second gets nothing: in a user namespace with a small one, so that
    // no other process of this machine is affected.
    let control =
        testbed.outside(Unprotected::MappedScratch, ["inotify", "4096", "0", "8"])?.report()?;
    if control.answer("another process") == Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("outside, the second process got one too"));
    }
    Ok(Verdict::held(format!("stopped at {}; another run got its own", greedy.number("instances"))))
}
