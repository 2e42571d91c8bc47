//! Taking more than one's share.

use std::time::Duration;

use belljar_spec::Clause;

use crate::answer::Answer;
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Stage, StageError, Unprotected};

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
        name: "limit.inotify",
        attack: "take every inotify instance, so that other runs get none",
        clause: Clause::IdUnique,
        severity: Severity::High,
        run: inotify,
    },
];

fn fork_bomb(stage: &Stage) -> Result<Verdict, StageError> {
    const LIMIT: u64 = 64;
    const MOST: u64 = 300;
    let flags = ["--pids-limit".to_owned(), LIMIT.to_string()];
    let promised = stage.promise(Clause::LimitPids, &[&flags[0], &flags[1]])?;
    if let Err(why) = promised {
        return Ok(Verdict::not_tried(why));
    }
    let workspace = stage.workspace()?;
    let most = MOST.to_string();
    let run = Run::of(&workspace, "forks").arg(&most).flag(&flags[0]).flag(&flags[1]);
    let seen = stage.inside(&run)?;
    let inside = seen.told()?;
    let children = inside.number("children");
    if inside.answer("fork") != Some(Answer::Errno(libc::EAGAIN)) || children > LIMIT {
        return Ok(Verdict::broke(format!("{children} children with a limit of {LIMIT}")));
    }
    if seen.took > Duration::from_secs(15) {
        return Ok(Verdict::broke(format!("it took {} s", seen.took.as_secs())));
    }
    let control = stage.outside(Unprotected::Scratch, ["forks", &most])?.told()?;
    if control.number("children") != MOST {
        return Ok(Verdict::no_control(format!(
            "outside, {} children",
            control.number("children")
        )));
    }
    Ok(Verdict::held(format!("EAGAIN after {children} children, limit {LIMIT}")))
}

fn memory_bomb(stage: &Stage) -> Result<Verdict, StageError> {
    const MEBIBYTES: &str = "192";
    let flags = ["--memory", "64m"];
    if let Err(why) = stage.promise(Clause::LimitMemory, &flags)? {
        return Ok(Verdict::not_tried(why));
    }
    let workspace = stage.workspace()?;
    let place = stage.place()?;
    let result = place.join("result.json");
    let run = flags
        .iter()
        .fold(Run::of(&workspace, "fill-memory").arg(MEBIBYTES), |run, flag| run.flag(flag))
        .flag("--result")
        .flag(&result);
    let seen = stage.inside(&run)?;
    if let Some(told) = seen.heard() {
        return Ok(Verdict::broke(format!("{} MiB with a limit of 64", told.get("mebibytes"))));
    }
    let told = std::fs::read(&result).map_err(StageError::io("read the result"))?;
    let told: serde_json::Value = serde_json::from_slice(&told)
        .map_err(|error| StageError::Unexpected(format!("the result is no JSON: {error}")))?;
    if seen.code != Some(137) || told["reason"] != "oom" {
        return Ok(Verdict::broke(format!(
            "it ended with {}, reason {}",
            seen.end(),
            told["reason"]
        )));
    }
    let control = stage.outside(Unprotected::Directly, ["fill-memory", MEBIBYTES])?.told()?;
    if control.get("mebibytes") != MEBIBYTES {
        return Ok(Verdict::no_control("outside, it could not be filled either"));
    }
    Ok(Verdict::held("137, reason oom"))
}

fn inotify(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let mut running =
        stage.start_inside(&Run::of(&workspace, "inotify").args(["4096", "20000"]))?;
    let greedy = running.told()?;
    let modest = stage.inside(&Run::of(&workspace, "inotify").args(["1", "0"]))?.told()?;
    running.stop()?;
    if modest.successes() != 2 {
        if let Err(why) = stage.promise(Clause::IdUnique, &[])? {
            return Ok(Verdict::NotPromised { why });
        }
        return Ok(Verdict::broke(format!(
            "a run took {} instances, and another got {}",
            greedy.number("instances"),
            modest.number("instances")
        )));
    }
    if greedy.answer("inotify_init") == Some(Answer::Succeeded) {
        return Ok(Verdict::no_control("the greedy run never came to its limit"));
    }
    // Where both share a limit, the second gets nothing: in a user namespace with a small one, so that
    // nobody else on this machine notices.
    let control =
        stage.outside(Unprotected::MappedScratch, ["inotify", "4096", "0", "8"])?.told()?;
    if control.answer("another process") == Some(Answer::Succeeded) {
        return Ok(Verdict::no_control("outside, the second process got one too"));
    }
    Ok(Verdict::held(format!("stopped at {}; another run got its own", greedy.number("instances"))))
}
