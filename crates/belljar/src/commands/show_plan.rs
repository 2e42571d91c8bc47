//! `run --dry-run`: prints the plan as text or JSON.

use belljar::run::DryRun;
use belljar::spec::{
    Access, EXIT_NOT_STARTED, MountKind, OsText, PLAIN_SHELL, PlannedMount, Presence, Source,
};

use super::{agent_summary, show};
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN};

pub(crate) fn show(dry_run: &DryRun, as_json: bool) -> i32 {
    if as_json {
        if report::json(dry_run).is_err() {
            return EXIT_NOT_STARTED;
        }
    } else {
        report::out(&to_text(dry_run));
    }
    if dry_run.missing.is_empty() { 0 } else { EXIT_NOT_STARTED }
}

fn to_text(dry_run: &DryRun) -> String {
    let plan = &dry_run.plan;
    let mut text = String::new();
    let mut line = |row: String| {
        text.push_str(&row);
        text.push('\n');
    };
    line(format!("{BOLD}backend{BOLD:#}   {}", plan.backend));
    for step in &dry_run.skipped_backends {
        let shown = format!("{WARN}skipped{WARN:#} {step}");
        line(format!("          {}", report::folded(&shown, 10)));
    }
    for (at, value) in plan.image.iter().flat_map(show::image_lines).enumerate() {
        let key = if at == 0 { "image" } else { "" };
        line(format!("{BOLD}{key:<9}{BOLD:#} {value}"));
    }
    match &dry_run.agent {
        None => {
            line(format!(
                "{BOLD}command{BOLD:#}   {}",
                belljar::spec::text::quote_command(&plan.command.argv)
            ));
        }
        Some(work) => {
            let mut row = |key: &str, value: String| {
                line(format!("{BOLD}{key:<9}{BOLD:#} {}", report::folded(&value, 10)));
            };
            row("agent", agent_summary::agent(&work.agent));
            let set_up =
                work.setup.as_ref().map(|setup| belljar::spec::text::quote_command(&setup.command));
            set_up.into_iter().for_each(|command| row("set-up", command));
            if !work.repeat.is_once() {
                row("loop", agent_summary::limits(&work.repeat));
            }
        }
    }
    line(format!("{BOLD}workdir{BOLD:#}   {}", plan.command.workdir));
    let user = plan.identity.inside;
    line(format!("{BOLD}user{BOLD:#}      {}:{} inside", user.uid, user.gid));
    let shell = match (&plan.shell, &plan.image) {
        (None, Some(_)) => "bash, if the image has it, else /bin/sh",
        (shell, _) => shell.as_deref().unwrap_or(PLAIN_SHELL),
    };
    line(format!("{BOLD}shell{BOLD:#}     {shell}"));
    if let Some(author) = &dry_run.git_identity {
        let author = belljar::spec::text::escape(author.to_string().as_bytes());
        line(format!("{BOLD}git{BOLD:#}       commits by {author}"));
    }
    line(format!("{BOLD}plan{BOLD:#}      {DIM}{}{DIM:#}", dry_run.plan_hash));
    line(format!("\n{BOLD}mounts{BOLD:#}"));
    for mount in &plan.mounts {
        line(format!("  {}", mount_line(mount, &dry_run.layered)));
    }
    text.push('\n');
    text.push_str(&posture(dry_run));
    text
}

/// The backend, and the enforcement of each clause.
pub(crate) fn posture_text(dry_run: &DryRun) -> String {
    let backend = dry_run.plan.backend;
    format!("{BOLD}backend{BOLD:#}   {backend}\n{}", posture(dry_run))
}

fn posture(dry_run: &DryRun) -> String {
    let mut text = String::new();
    let mut line = |row: String| {
        text.push_str(&row);
        text.push('\n');
    };
    line(format!("{BOLD}posture{BOLD:#}"));
    for (clause, enforcement) in dry_run.plan.posture.iter() {
        let style = match enforcement.status() {
            "enforced" => GOOD,
            "weaker" => WARN,
            _ => DIM,
        };
        line(format!(
            "  {:<18} {style}{:<8}{style:#} {}",
            clause.name(),
            enforcement.status(),
            report::folded(enforcement.reason(), 30)
        ));
    }
    if !dry_run.missing.is_empty() {
        line(format!("\n{BAD}would not start:{BAD:#} these required clauses are not enforced"));
        for unmet in &dry_run.missing {
            line(format!("  {}", unmet.clause));
        }
    }
    text
}

fn mount_line(mount: &PlannedMount, layered: &[OsText]) -> String {
    let target = mount.target.to_string();
    match &mount.what {
        MountKind::Bind { source, access, presence, .. } => {
            let from = match source {
                Source::Path { path } => path.to_string(),
                Source::RunHome => "the run's home".to_owned(),
                Source::RunTrust => "the run's certificate authority".to_owned(),
                Source::RunTrustBundle => "the host's and the run's authorities".to_owned(),
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
        MountKind::RootImage { layers, .. } => {
            let plural = if layers.len() == 1 { "" } else { "s" };
            format!("ro   / from the image ({} layer{plural})", layers.len())
        }
        MountKind::RootDirectory { source } => format!("ro   / from {source}"),
        MountKind::Tmpfs { size, .. } => format!("tmp  {target} ({})", belljar::spec::Size(*size)),
        MountKind::Sent { source, access, size } => {
            let back = match access {
                Access::ReadOnly => "not brought back",
                Access::Layered => "brought back at the end",
                Access::Writable => "brought back and applied at the end",
            };
            let size = belljar::spec::Size(*size);
            format!("sent {target} from {source} ({back}; at most {size}, in memory)")
        }
        MountKind::Copy { .. } => format!("copy {target}, if present"),
        MountKind::File { .. } | MountKind::Accounts { .. } => format!("made {target}"),
        MountKind::Symlink { to } => format!("link {target} -> {to}"),
        MountKind::Proc { .. } => "own  /proc".to_owned(),
        MountKind::Dev { nodes, .. } => format!("own  /dev ({}, pts, shm)", nodes.join(", ")),
    }
}
