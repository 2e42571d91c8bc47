//! Attacks on other processes, and attempts to gain privileges.

use belljar_spec::Clause;

use super::judge::{
    EACCES, ENODEV, ENOENT, ENOSYS, EPERM, ESRCH, broken, judge, let_in, refusals, summary, usual,
};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::{AttemptResult, ProbeReport};
use crate::testbed::{Run, Sleeper, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "proc.host-processes",
        attack: "see and signal processes of the host",
        clause: Clause::ProcHidden,
        severity: Severity::High,
        run: host_processes,
    },
    Case {
        name: "proc.trace-init",
        attack: "trace PID 1",
        clause: Clause::ProcHidden,
        severity: Severity::High,
        run: trace_init,
    },
    Case {
        name: "proc.init-memory",
        attack: "read the memory, environment and files of PID 1",
        clause: Clause::ProcHidden,
        severity: Severity::High,
        run: init_memory,
    },
    Case {
        name: "proc.limit-init",
        attack: "set the limits of PID 1, so that it cannot do its work",
        clause: Clause::ProcHidden,
        severity: Severity::Medium,
        run: limit_init,
    },
    Case {
        name: "proc.steal-descriptor",
        attack: "take PID 1's descriptors and forge the run's end",
        clause: Clause::AuditOutside,
        severity: Severity::Critical,
        run: steal_descriptor,
    },
    Case {
        name: "proc.new-namespaces",
        attack: "make namespaces by unshare, clone, clone3, with high bits",
        clause: Clause::ProcUnprivileged,
        severity: Severity::High,
        run: new_namespaces,
    },
    Case {
        name: "proc.privileges",
        attack: "have uid 0, capabilities, or no filter, seen from inside and outside",
        clause: Clause::ProcUnprivileged,
        severity: Severity::Critical,
        run: privileges,
    },
    Case {
        name: "proc.core-dump",
        attack: "raise the core limit, crash, leave a core or start a handler on the host",
        clause: Clause::ProcUnprivileged,
        severity: Severity::Medium,
        run: core_dump,
    },
];

fn host_processes(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let sleeper = Sleeper::start(testbed)?;
    let (own, pid) = (std::process::id().to_string(), sleeper.pid().to_string());
    let inside = testbed.inside(&Run::of(&workspace, "processes").args([&pid, &own]))?.report()?;
    let control = testbed.outside(Unprotected::Directly, ["processes", &pid, &own])?.report()?;
    let visible = inside.number("visible");
    if visible > 4 {
        return Ok(Verdict::broke(format!("{visible} processes can be seen")));
    }
    if control.number("visible") <= visible {
        return Ok(Verdict::no_control("outside, no more processes can be seen"));
    }
    Ok(judge(&inside, &control, &[ESRCH, ENOENT], usual))
}

/// The same attempt on PID 1 inside, and on a child of its own outside.
fn on_init(
    testbed: &TestBed,
    probe: &str,
    allowed: &[AttemptResult],
) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, probe).arg("init"))?.report()?;
    let control = testbed.outside(Unprotected::Directly, [probe, "child"])?.report()?;
    Ok(judge(&inside, &control, allowed, usual))
}

fn trace_init(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    on_init(testbed, "trace", &[EPERM])
}

/// gVisor lets anybody see at which addresses a process has something, and which numbers its descriptors
/// have. Nothing of what is there can be had by that.
const OPEN_IN_GVISOR: &[&str] = &["maps", "fd", "fdinfo"];

fn init_memory(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let mut inside = testbed.inside(&Run::of(&workspace, "memory-of").arg("init"))?.report()?;
    let mut control = testbed.outside(Unprotected::Directly, ["memory-of", "child"])?.report()?;
    let mut note = "";
    if testbed.kernel_is_separate() {
        let counts = |report: &mut ProbeReport| {
            report.tries.retain(|tried| !OPEN_IN_GVISOR.contains(&tried.what.as_str()));
        };
        counts(&mut inside);
        counts(&mut control);
        note = "; the numbers of its descriptors and addresses can be seen";
    }
    // PID 1 has an empty environment there, which can be opened; no call reads another's memory.
    let allowed = refusals(testbed, &[EACCES, EPERM], &[ENOENT, ENOSYS]);
    Ok(match judge(&inside, &control, &allowed, usual) {
        Verdict::Held { how } => Verdict::held(format!("{how}{note}")),
        other => other,
    })
}

fn limit_init(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    on_init(testbed, "limit-of", &[EPERM])
}

fn steal_descriptor(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const CODE: i32 = 37;
    let workspace = testbed.workspace()?;
    let code = CODE.to_string();
    let run = Run::of(&workspace, "steal-descriptor").args(["init", &code]);
    let seen = testbed.inside(&run)?.started()?;
    if seen.code != Some(CODE) {
        return Ok(Verdict::broke(format!(
            "the run ended with {}, the program with {CODE}",
            seen.end()
        )));
    }
    let inside = seen.report()?;
    // gVisor does not implement these calls.
    let allowed =
        refusals(testbed, &[EPERM, EACCES], &[ENOSYS, ENOENT, ENODEV, AttemptResult::Masked]);
    if let Some(verdict) = broken(&inside, &allowed) {
        return Ok(verdict);
    }
    let is_channel = |what: &str| what.starts_with("write fd/");
    if !inside.tries.iter().any(|tried| is_channel(&tried.what) && tried.answer == EACCES) {
        return Ok(Verdict::no_control("no descriptor of PID 1 was found"));
    }
    let control =
        testbed.outside(Unprotected::Directly, ["steal-descriptor", "child", &code])?.report()?;
    if control.answer("descriptor 0") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    Ok(Verdict::held(format!("{}; the true exit code came back", summary(&inside))))
}

fn new_namespaces(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "namespaces"))?.report()?;
    for tried in &inside.tries {
        let wanted = if tried.what.starts_with("clone3") { ENOSYS } else { EPERM };
        if tried.answer != wanted {
            return Ok(Verdict::broke(format!("{}: {}, not {wanted}", tried.what, tried.answer)));
        }
    }
    let control = testbed.outside(Unprotected::Scratch, ["namespaces"])?.report()?;
    Ok(judge(&inside, &control, &[EPERM, ENOSYS], |what, answer| match what {
        // The kernel itself does not know that bit there.
        "unshare user, high bit" => let_in(what, answer),
        what => usual(what, answer),
    }))
}

fn privileges(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let marker = testbed.unique_name()?;
    let mut run = testbed.start_inside(&Run::of(&workspace, "facts").arg("20000").arg(&marker))?;
    let report = run.report()?;
    let on_host = host_ids(&marker);
    run.stop()?;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        if u64::from_str_radix(report.get(set), 16) != Ok(0) {
            return Ok(Verdict::broke(format!("{set} is {}", report.get(set))));
        }
    }
    for (fact, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("core limit", "1")] {
        if report.get(fact) != wanted {
            return Ok(Verdict::broke(format!("{fact} is {}, not {wanted}", report.get(fact))));
        }
    }
    let zero = |ids: &str| ids.is_empty() || ids.split_whitespace().any(|id| id == "0");
    if zero(report.get("Uid"))
        || zero(report.get("Gid"))
        || report.get("Groups").split(' ').any(|id| id == "0")
    {
        return Ok(Verdict::broke(format!(
            "ids inside: {} / {}",
            report.get("Uid"),
            report.get("Gid")
        )));
    }
    let on_host = match on_host {
        OnHost::Ids { uids, gids } if zero(&uids) || zero(&gids) => {
            return Ok(Verdict::broke(format!("ids on the host: {uids} / {gids}")));
        }
        OnHost::Ids { uids, .. } => {
            format!("uid {} on the host", uids.split(' ').next().unwrap_or_default())
        }
        OnHost::OnlyLauncher if testbed.kernel_is_separate() => {
            "no process of the host's".to_owned()
        }
        OnHost::OnlyLauncher => {
            return Ok(Verdict::no_control("its process was not found on the host"));
        }
        OnHost::Nothing => {
            return Ok(Verdict::no_control("not even the launcher was found on the host"));
        }
    };
    let control = testbed.outside(Unprotected::Scratch, ["facts", "0"])?.report()?;
    let privileged = u64::from_str_radix(control.get("CapEff"), 16).is_ok_and(|set| set != 0);
    if !privileged || control.get("NoNewPrivs") != "0" && testbed.is_root() {
        return Ok(Verdict::no_control("the control has no capabilities either"));
    }
    Ok(Verdict::held(format!("{on_host}, no capabilities")))
}

/// What the host's kernel knows of a probe.
enum OnHost {
    Ids {
        uids: String,
        gids: String,
    },
    /// The probe's arguments are only in its launcher's: another kernel runs it.
    OnlyLauncher,
    Nothing,
}

fn host_ids(marker: &str) -> OnHost {
    let mut found = OnHost::Nothing;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if !line.split(|byte| *byte == 0).any(|argument| argument == marker.as_bytes()) {
            continue;
        }
        if !line.starts_with(b"/workspace/probe\0") {
            found = OnHost::OnlyLauncher;
            continue;
        }
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let ids = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        if let (Some(uids), Some(gids)) = (ids("Uid:"), ids("Gid:")) {
            return OnHost::Ids { uids, gids };
        }
    }
    found
}

fn core_dump(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "core-limit"))?.report()?;
    let crashed = testbed.inside(&Run::of(&workspace, "crash"))?.started()?;
    if crashed.code != Some(128 + libc::SIGSEGV) {
        return Ok(Verdict::broke(format!("a crash ended with {}", crashed.end())));
    }
    let names = std::fs::read_dir(&workspace).map_err(TestBedError::io("list the workspace"))?;
    let names: Vec<String> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names != ["probe"] {
        return Ok(Verdict::broke(format!("the crash left {}", names.join(", "))));
    }
    let control = testbed.outside(Unprotected::Directly, ["core-limit"])?.report()?;
    Ok(judge(&inside, &control, &[EPERM], usual))
}
