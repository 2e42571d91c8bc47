//! Other processes, and more rights than one has.

use belljar_spec::Clause;

use super::judge::{EACCES, ENOENT, ENOSYS, EPERM, ESRCH, broken, judge, let_in, summary, usual};
use crate::answer::Answer;
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Sleeper, Stage, StageError, Unprotected};

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

fn host_processes(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let sleeper = Sleeper::start(stage)?;
    let (own, pid) = (std::process::id().to_string(), sleeper.pid().to_string());
    let inside = stage.inside(&Run::of(&workspace, "processes").args([&pid, &own]))?.told()?;
    let control = stage.outside(Unprotected::Directly, ["processes", &pid, &own])?.told()?;
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
fn on_init(stage: &Stage, probe: &str, allowed: &[Answer]) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, probe).arg("init"))?.told()?;
    let control = stage.outside(Unprotected::Directly, [probe, "child"])?.told()?;
    Ok(judge(&inside, &control, allowed, usual))
}

fn trace_init(stage: &Stage) -> Result<Verdict, StageError> {
    on_init(stage, "trace", &[EPERM])
}

fn init_memory(stage: &Stage) -> Result<Verdict, StageError> {
    on_init(stage, "memory-of", &[EACCES, EPERM])
}

fn limit_init(stage: &Stage) -> Result<Verdict, StageError> {
    on_init(stage, "limit-of", &[EPERM])
}

fn steal_descriptor(stage: &Stage) -> Result<Verdict, StageError> {
    const CODE: i32 = 37;
    let workspace = stage.workspace()?;
    let code = CODE.to_string();
    let seen = stage.inside(&Run::of(&workspace, "steal-descriptor").args(["init", &code]))?;
    if seen.code != Some(CODE) {
        return Ok(Verdict::broke(format!(
            "the run ended with {}, the program with {CODE}",
            seen.end()
        )));
    }
    let inside = seen.told()?;
    if let Some(verdict) = broken(&inside, &[EPERM, EACCES]) {
        return Ok(verdict);
    }
    let control =
        stage.outside(Unprotected::Directly, ["steal-descriptor", "child", &code])?.told()?;
    if control.answer("descriptor 0") != Some(Answer::Succeeded) {
        return Ok(Verdict::no_control(format!("outside: {}", summary(&control))));
    }
    Ok(Verdict::held(format!("{}; the true exit code came back", summary(&inside))))
}

fn new_namespaces(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "namespaces"))?.told()?;
    for tried in &inside.tries {
        let wanted = if tried.what.starts_with("clone3") { ENOSYS } else { EPERM };
        if tried.answer != wanted {
            return Ok(Verdict::broke(format!("{}: {}, not {wanted}", tried.what, tried.answer)));
        }
    }
    let control = stage.outside(Unprotected::Scratch, ["namespaces"])?.told()?;
    Ok(judge(&inside, &control, &[EPERM, ENOSYS], |what, answer| match what {
        // The kernel itself does not know that bit there.
        "unshare user, high bit" => let_in(what, answer),
        what => usual(what, answer),
    }))
}

fn privileges(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let mut run = stage.start_inside(&Run::of(&workspace, "facts").arg("20000"))?;
    let told = run.told()?;
    let on_host = host_ids(run.pid());
    run.stop()?;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        if u64::from_str_radix(told.get(set), 16) != Ok(0) {
            return Ok(Verdict::broke(format!("{set} is {}", told.get(set))));
        }
    }
    for (fact, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("core limit", "1")] {
        if told.get(fact) != wanted {
            return Ok(Verdict::broke(format!("{fact} is {}, not {wanted}", told.get(fact))));
        }
    }
    let zero = |ids: &str| ids.is_empty() || ids.split_whitespace().any(|id| id == "0");
    if zero(told.get("Uid"))
        || zero(told.get("Gid"))
        || told.get("Groups").split(' ').any(|id| id == "0")
    {
        return Ok(Verdict::broke(format!(
            "ids inside: {} / {}",
            told.get("Uid"),
            told.get("Gid")
        )));
    }
    let Some((uids, gids)) = on_host else {
        return Ok(Verdict::no_control("the process was not found on the host"));
    };
    if zero(&uids) || zero(&gids) {
        return Ok(Verdict::broke(format!("ids on the host: {uids} / {gids}")));
    }
    let control = stage.outside(Unprotected::Scratch, ["facts", "0"])?.told()?;
    let privileged = u64::from_str_radix(control.get("CapEff"), 16).is_ok_and(|set| set != 0);
    if !privileged || control.get("NoNewPrivs") != "0" && stage.is_root() {
        return Ok(Verdict::no_control("the control has no capabilities either"));
    }
    Ok(Verdict::held(format!(
        "uid {} on the host, no capabilities",
        uids.split(' ').next().unwrap_or_default()
    )))
}

/// The ids of the probe as the host's kernel knows them: it is a descendant of the launcher.
fn host_ids(launcher: u32) -> Option<(String, String)> {
    for pid in descendants(launcher) {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if !line.starts_with(b"/workspace/probe\0") {
            continue;
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ids = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        if let (Some(uids), Some(gids)) = (ids("Uid:"), ids("Gid:")) {
            return Some((uids, gids));
        }
    }
    None
}

fn descendants(of: u32) -> Vec<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        if let Some(parent) =
            after_name.split_whitespace().nth(1).and_then(|word| word.parse().ok())
        {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![of];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

fn core_dump(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "core-limit"))?.told()?;
    let crashed = stage.inside(&Run::of(&workspace, "crash"))?;
    if crashed.code != Some(128 + libc::SIGSEGV) {
        return Ok(Verdict::broke(format!("a crash ended with {}", crashed.end())));
    }
    let names = std::fs::read_dir(&workspace).map_err(StageError::io("list the workspace"))?;
    let names: Vec<String> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names != ["probe"] {
        return Ok(Verdict::broke(format!("the crash left {}", names.join(", "))));
    }
    let control = stage.outside(Unprotected::Directly, ["core-limit"])?.told()?;
    Ok(judge(&inside, &control, &[EPERM], usual))
}
