//! `run --dry-run`: the plan in words, or as data.

use belljar::run::DryRun;
use belljar::spec::{Access, EXIT_NOT_STARTED, MountKind, OsText, PlannedMount, Presence, Source};

use super::{agent_summary, show};
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN};

pub(crate) fn show(dry_run: &DryRun, as_json: bool) -> i32 {
    if as_json {
        if report::json(dry_run).is_err() {
            return EXIT_NOT_STARTED;
        }
    } else {
        report::out(&in_words(dry_run));
    }
    if dry_run.missing.is_empty() { 0 } else { EXIT_NOT_STARTED }
}

fn in_words(dry_run: &DryRun) -> String {
    let plan = &dry_run.plan;
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(format!("{BOLD}backend{BOLD:#}   {}", plan.backend));
    for step in &dry_run.not_taken {
        let said = format!("{WARN}not{WARN:#} {step}");
        line(format!("          {}", report::folded(&said, 10)));
    }
    for (at, words) in plan.image.iter().flat_map(show::image_in_words).enumerate() {
        let key = if at == 0 { "image" } else { "" };
        line(format!("{BOLD}{key:<9}{BOLD:#} {words}"));
    }
    match &dry_run.agent {
        None => {
            line(format!(
                "{BOLD}command{BOLD:#}   {}",
                belljar::spec::text::quote_command(&plan.command.argv)
            ));
        }
        Some(work) => {
            let mut row = |key: &str, words: String| {
                line(format!("{BOLD}{key:<9}{BOLD:#} {}", report::folded(&words, 10)));
            };
            row("agent", agent_summary::agent(&work.agent));
            let set_up =
                work.setup.as_ref().map(|setup| belljar::spec::text::quote_command(&setup.command));
            set_up.into_iter().for_each(|words| row("set-up", words));
            if !work.repeat.is_once() {
                row("loop", agent_summary::limits(&work.repeat));
            }
        }
    }
    line(format!("{BOLD}workdir{BOLD:#}   {}", plan.command.workdir));
    let user = plan.identity.inside;
    line(format!("{BOLD}user{BOLD:#}      {}:{} inside", user.uid, user.gid));
    line(format!("{BOLD}plan{BOLD:#}      {DIM}{}{DIM:#}", dry_run.plan_hash));
    line(format!("\n{BOLD}mounts{BOLD:#}"));
    for mount in &plan.mounts {
        line(format!("  {}", mount_in_words(mount, &dry_run.layered)));
    }
    text.push('\n');
    text.push_str(&posture(dry_run));
    text
}

/// The backend, and clause by clause what it would hold.
pub(crate) fn posture_in_words(dry_run: &DryRun) -> String {
    let backend = dry_run.plan.backend;
    format!("{BOLD}backend{BOLD:#}   {backend}\n{}", posture(dry_run))
}

fn posture(dry_run: &DryRun) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(format!("{BOLD}posture{BOLD:#}"));
    for (clause, enforcement) in dry_run.plan.posture.iter() {
        let style = match enforcement.word() {
            "enforced" => GOOD,
            "weaker" => WARN,
            _ => DIM,
        };
        line(format!(
            "  {:<18} {style}{:<8}{style:#} {}",
            clause.name(),
            enforcement.word(),
            report::folded(enforcement.reason(), 30)
        ));
    }
    if !dry_run.missing.is_empty() {
        line(format!("\n{BAD}would not start:{BAD:#} these clauses are required and do not hold"));
        for unmet in &dry_run.missing {
            line(format!("  {}", unmet.clause));
        }
    }
    text
}

fn mount_in_words(mount: &PlannedMount, layered: &[OsText]) -> String {
    let target = mount.target.to_string();
    match &mount.what {
        MountKind::Bind { source, access, presence, .. } => {
            let from = match source {
                Source::Path { path } => path.to_string(),
                Source::RunHome => "the run's own home".to_owned(),
                Source::RunTrust => "the run's own certificate authority".to_owned(),
                Source::RunTrustBundle => "the host's authorities and the run's own".to_owned(),
            };
            let how = match access {
                Access::ReadOnly => "ro  ",
                _ if layered.contains(&mount.target) => "over",
                _ => "rw  ",
            };
            let optional = if *presence == Presence::IfPresent { ", if present" } else { "" };
            let from = if from == target { String::new() } else { format!(" from {from}") };
            format!("{how} {target}{from}{optional}")
        }
        MountKind::RootDirectory { source } => format!("ro   / from {source}"),
        MountKind::Tmpfs { size, .. } => format!("tmp  {target} ({})", belljar::spec::Size(*size)),
        MountKind::Copy { .. } => format!("copy {target}, if present"),
        MountKind::File { .. } | MountKind::Accounts { .. } => format!("made {target}"),
        MountKind::Symlink { to } => format!("link {target} -> {to}"),
        MountKind::Proc { .. } => "own  /proc".to_owned(),
        MountKind::Dev { nodes, .. } => format!("own  /dev ({}, pts, shm)", nodes.join(", ")),
    }
}
