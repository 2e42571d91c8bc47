//! `belljar show`: prints one run on a page.

use std::collections::BTreeSet;

use belljar::home::Home;
use belljar::lineage::{Lineage, lineage};
use belljar::network::{ListChange, network_report};
use belljar::spec::egress::{EgressSpec, Reach};
use belljar::spec::text::escape;
use belljar::spec::{
    HumanDuration, Limits, Mount, OsText, PlannedImage, RunSpec, SHELL_VARIABLE, Size,
    SkippedBackend, Usage,
};
use belljar::store::RunInfo;

use super::run_file::{self, RunFile};
use super::{
    CommandResult, changes, control_files, exit_code, find_or_newest, open_home, ps, show_agent,
    time_format,
};
use crate::cli::ShowArgs;
use crate::report::{self, BOLD, DIM, GOOD, WARN, folded};

/// The column of the values.
pub(super) const INDENT: usize = 12;

pub(crate) fn run(args: &ShowArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &ShowArgs) -> CommandResult {
    let home = open_home()?;
    let run = find_or_newest(&home, args.run.as_deref())?;
    if args.json {
        let record = run_file::read_value(&home, &run.id).ok();
        let directory = OsText::from(home.run_dir(&run.id));
        let has_agent =
            record.as_ref().is_some_and(|record| record.pointer("/spec/agent").is_some());
        let mut shown = serde_json::json!({ "run": run, "directory": directory, "record": record });
        if has_agent {
            show_agent::add_data(&mut shown, &lineage(&home, &run.id)?)?;
        }
        shown["reason"] = serde_json::json!(run.reason);
        let file = run_file::read(&home, &run.id).ok();
        let report = file.as_ref().and_then(|file| file.outcome.as_ref()?.workspace.as_ref());
        let new_control_files = report.map(super::result::names_inside).unwrap_or_default();
        shown["new_control_files"] = serde_json::json!(new_control_files);
        let changes = file.map(|file| network_changes(&home, &run, &file.spec));
        shown["network_changes"] = serde_json::json!(changes.unwrap_or_default());
        report::json(&shown)?;
        return Ok(0);
    }
    let file = run_file::read(&home, &run.id);
    let has_agent = file.as_ref().is_ok_and(|file| file.spec.agent.is_some());
    let line = has_agent.then(|| lineage(&home, &run.id)).transpose();
    let known = line.as_ref().ok().and_then(Option::as_ref);
    report::out(&page(&home, &run, file.as_ref().ok(), known));
    if let Err(error) = file {
        report::failure(&error);
    }
    if let Err(error) = line {
        report::failure(&error);
    }
    Ok(0)
}

pub(super) struct Page(String);

impl Page {
    /// Appends text unchanged.
    pub(super) fn text(&mut self, text: &str) {
        self.0.push_str(text);
    }

    pub(super) fn row(&mut self, key: &str, value: &str) {
        let pad = " ".repeat(INDENT.saturating_sub(key.len()));
        self.0.push_str(&format!("{BOLD}{key}{BOLD:#}{pad}{value}\n"));
    }

    /// Appends several lines under one key.
    pub(super) fn rows(&mut self, key: &str, lines: impl IntoIterator<Item = String>) {
        for (at, line) in lines.into_iter().enumerate() {
            self.row(if at == 0 { key } else { "" }, &line);
        }
    }
}

fn page(home: &Home, run: &RunInfo, file: Option<&RunFile>, line: Option<&Lineage>) -> String {
    let mut page = Page(String::new());
    page.row("run", run.id.as_str());
    page.rows("name", run.name.as_deref().map(|name| escape(name.as_bytes())));
    let work = file.and_then(|file| file.spec.agent.as_deref());
    let command = match file {
        Some(_) if work.is_some() => "none; runs an agent".to_owned(),
        Some(file) if file.spec.command.is_empty() => "none; kept for exec".to_owned(),
        Some(file) => belljar::spec::text::quote_command(&file.spec.command),
        None => run.command.clone(),
    };
    page.row("command", &folded(&command, INDENT));
    page.row("state", &state(run));
    let detail = file.and_then(|file| file.outcome.as_ref());
    if let Some(detail) = detail.and_then(|outcome| outcome.detail.as_ref()) {
        page.row("why", &folded(&escape(detail.as_bytes()), INDENT));
    }
    if let Some(failure) = detail.and_then(|outcome| outcome.failure.as_ref()) {
        page.row("why", &folded(&escape(failure.to_string().as_bytes()), INDENT));
    }
    if let Some(work) = work {
        show_agent::settings(&mut page, work);
        let login = file.and_then(|file| belljar::login::status(&file.spec));
        page.rows("login", login.map(|login| folded(&login.text, INDENT)));
    }
    if let Some(line) = line {
        show_agent::ancestry(&mut page, line);
    }
    let until = run.stopped_ms.map(|time| format!(" to {}", time_format::shown(time)));
    let since = time_format::shown(run.created_ms);
    page.row("when", &format!("{since}{}", until.unwrap_or_default()));
    if let Some(backend) = run.backend {
        page.row("backend", backend.name());
    }
    if let Some(image) = file.and_then(|file| file.image.as_ref()) {
        page.rows("image", image_lines(image));
    }
    if let Some(file) = file {
        let step = |step: &SkippedBackend| folded(&escape(step.to_string().as_bytes()), INDENT);
        page.rows("skipped", file.skipped_backends.iter().map(step));
        settings(&mut page, &file.spec);
        let changes = network_changes(home, run, &file.spec);
        page.rows("changed", changes.iter().flat_map(network_change));
        posture(&mut page, file);
    }
    let workspace = detail.and_then(|outcome| outcome.workspace.as_ref());
    if let Some(report) = workspace {
        let applied = report.applied.as_ref();
        let applied = applied.and_then(|applied| changes::applied_line(applied, run.id.tail()));
        page.rows("workspace", applied.iter().map(|line| folded(line, INDENT)));
        page.rows("runs later", changes::autorun_lines(report, INDENT));
        page.rows("new control", control_files::lines(report));
        let quarantine = home.run_dir(&run.id).join("quarantine");
        if quarantine.is_dir() {
            page.row("moved to", &OsText::from(quarantine).to_string());
        }
    }
    if !run.is_live() {
        page.row("used", &usage(&run.usage));
    }
    page.row("files", &OsText::from(home.run_dir(&run.id)).to_string());
    if let Some(file) = file {
        page.row("plan", &format!("{DIM}{}{DIM:#}", escape(file.plan_hash.as_bytes())));
    }
    if let Some(line) = line {
        show_agent::results(&mut page, line);
    }
    page.0
}

/// The image's name, id and digest.
pub(super) fn image_lines(image: &PlannedImage) -> Vec<String> {
    let PlannedImage { name, id, digest, .. } = image;
    let mut lines = vec![escape(name.as_bytes()), format!("id {}", escape(id.as_bytes()))];
    lines.extend(digest.as_ref().map(|digest| format!("digest {}", escape(digest.as_bytes()))));
    lines
}

fn state(run: &RunInfo) -> String {
    let state = ps::state(run);
    let (Some(reason), Some(exit)) = (run.reason, run.exit) else { return state };
    let source = serde_json::to_value(exit.source).ok();
    let source = source.as_ref().and_then(|source| source.as_str()).unwrap_or_default();
    let code = exit.process_code();
    format!("{state} (reason {}, exit code {code} of the {source})", reason.name())
}

fn settings(page: &mut Page, spec: &RunSpec) {
    let mount = |mount: &Mount| {
        let Mount { source, target, mode } = mount;
        mount_line(mode.name(), &target.to_string(), &source.to_string())
    };
    let user = format!("{}:{} inside", spec.user.uid, spec.user.gid);
    page.row("workdir", &spec.workdir.to_string());
    page.row("user", &user);
    let tmpfs =
        spec.tmpfs.iter().map(|tmpfs| format!("tmp {} ({})", tmpfs.target, Size(tmpfs.size)));
    let tool = |tool: &OsText| format!("ro  {}", folded(&format!("{tool} as a tool"), INDENT + 4));
    let tools = spec.tools.iter().map(tool);
    let mounts = spec.workspace.iter().chain(&spec.mounts).map(mount);
    page.rows("mounts", mounts.chain(tmpfs).chain(tools));
    page.rows("network", network(spec));
    page.row("limits", &folded(&limits(&spec.limits), INDENT));
    // The spec of an older run has the shell among its variables; every run has it.
    let names = spec.env.keys().map(|name| escape(name.as_bytes()));
    let names: BTreeSet<String> = names.chain([SHELL_VARIABLE.to_owned()]).collect();
    let names: Vec<String> = names.into_iter().collect();
    page.row("variables", &folded(&names.join(" "), INDENT));
    let labels = spec.labels.iter().map(|(key, value)| escape(format!("{key}={value}").as_bytes()));
    page.rows("labels", labels);
}

/// Prints the path once where source and target are the same.
fn mount_line(mode: &str, target: &str, source: &str) -> String {
    let paths = match target == source {
        true => target.to_owned(),
        false => format!("{target} from {source}"),
    };
    format!("{mode:<3} {}", folded(&paths, INDENT + 4))
}

fn network(spec: &RunSpec) -> Vec<String> {
    let EgressSpec { reach, allow_private, secrets, routes, publish, .. } = &spec.egress;
    let line = |text: String| folded(&escape(text.as_bytes()), INDENT);
    let mut lines = match (reach, spec.network_allow.as_slice()) {
        (Reach::Learn, _) => vec!["every public host, to learn which are needed".to_owned()],
        (Reach::Listed, []) if !spec.has_network_access_after_setup() => vec!["none".to_owned()],
        (Reach::Listed, rules) => vec![line(rules.join(", "))],
    };
    lines.retain(|line| !line.is_empty());
    if !spec.setup_network().is_empty() {
        let rules = spec.setup_network().join(", ");
        lines.push(line(format!("during set-up: {rules}")));
    }
    lines.extend(allow_private.iter().map(|host| line(format!("private {host}"))));
    lines.extend(
        secrets.iter().map(|secret| {
            line(format!("secret {} for {}:{}", secret.env, secret.host, secret.port))
        }),
    );
    lines.extend(routes.iter().map(|route| {
        let to = &route.to;
        let (scheme, host, port, path) = (to.scheme.name(), &to.host, to.port, &to.path);
        line(format!("route {} to {scheme}://{host}:{port}{path}", route.listen))
    }));
    lines.extend(publish.iter().map(|published| {
        let outside = std::net::SocketAddr::new(published.address, published.host_port);
        format!("publish {} at {outside}", published.port)
    }));
    lines
}

/// Of the list that the run began with; only a run with network access has any.
fn network_changes(home: &Home, run: &RunInfo, spec: &RunSpec) -> Vec<ListChange> {
    if !spec.has_network_access() {
        return Vec::new();
    }
    network_report(home, &run.id).map(|report| report.changes).unwrap_or_default()
}

fn network_change(change: &ListChange) -> Vec<String> {
    let (added, removed) = change.differences();
    let all = added.into_iter().map(|entry| ("allowed", entry));
    let lines = all.chain(removed.into_iter().map(|entry| ("removed", entry)));
    let time = escape(change.time.as_bytes());
    let line = |(verb, entry): (&str, String)| {
        folded(&escape(format!("network, {time}: {verb} {entry}").as_bytes()), INDENT)
    };
    lines.map(line).collect()
}

/// Counts the enforced clauses, and explains the others.
fn posture(page: &mut Page, file: &RunFile) {
    let held = file.posture.iter().filter(|(_, enforcement)| enforcement.is_enforced()).count();
    page.row("posture", &format!("{GOOD}{held} clauses enforced{GOOD:#}"));
    for (clause, enforcement) in file.posture.not_enforced() {
        let (word, why) = (enforcement.status(), escape(enforcement.reason().as_bytes()));
        let why = folded(&why, INDENT + 2);
        let pad = " ".repeat(INDENT);
        let line = format!("{WARN}{word}{WARN:#} {clause}\n{pad}  {why}");
        page.row("", &line);
    }
    let waived = file.spec.waivers.iter().map(|waiver| {
        folded(&format!("{}: {}", waiver.clause, escape(waiver.reason.as_bytes())), INDENT)
    });
    page.rows("waived", waived);
}

fn limits(limits: &Limits) -> String {
    let span = |span: std::time::Duration| {
        HumanDuration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).to_string()
    };
    let mut parts = Vec::new();
    parts.extend(limits.memory.map(|bytes| format!("memory {}", Size(bytes))));
    parts.extend(limits.millicpus.map(|cpus| format!("cpus {}.{:03}", cpus / 1000, cpus % 1000)));
    parts.extend(limits.pids.map(|count| format!("pids {count}")));
    parts.extend(limits.time.map(|time| format!("time {}", span(time))));
    parts.extend(limits.idle.map(|idle| format!("idle {}", span(idle))));
    parts.extend(limits.disk.map(|bytes| format!("disk {}", Size(bytes))));
    parts.push(format!("output {}", Size(limits.output)));
    parts.push(format!("stop_timeout {}", span(limits.stop_timeout)));
    parts.join(", ")
}

fn usage(usage: &Usage) -> String {
    let mut parts = vec![format!("{} wall clock", time_format::duration(usage.wall_ms))];
    parts.extend(usage.cpu_ms.map(|ms| format!("{} of cpu", time_format::duration(ms))));
    parts.extend(usage.memory_peak_bytes.map(|bytes| format!("{} KiB of memory", bytes / 1024)));
    parts.extend(usage.pids_peak.map(|count| format!("{count} processes at most")));
    parts.extend(usage.written_bytes.map(|bytes| format!("{} KiB written", bytes / 1024)));
    folded(&parts.join(", "), INDENT)
}
