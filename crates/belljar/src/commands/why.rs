//! `belljar why`: explains which connections and system calls were denied, and what would allow them.

use std::collections::BTreeSet;

use belljar::denied_calls::{DeniedCallSummary, denied_calls};
use belljar::network::{DeniedHost, ListChange, NetworkReport, PolicyPhase, network_report};
use belljar::spec::BackendName;
use belljar::spec::egress::{EgressBudgetHit, Reach};
use belljar::spec::text::escape;
use belljar::spec::{BackendChoice, DeniedCalls, Hint};

use super::{CommandResult, exit_code, find_or_newest, open_home, run_file};
use crate::cli::WhyArgs;
use crate::report::{self, BAD, BOLD, DIM, GOOD, WARN, folded};

/// The most frequent come first.
const MAX_SHOWN: usize = 40;

pub(crate) fn run(args: &WhyArgs) -> i32 {
    exit_code(act(args))
}

fn act(args: &WhyArgs) -> CommandResult {
    let home = open_home()?;
    let run = find_or_newest(&home, args.run.as_deref())?;
    let mut account = network_report(&home, &run.id)?;
    let file = run_file::read(&home, &run.id).ok();
    if file.as_ref().is_some_and(|file| file.spec.setup().is_some()) {
        account = account.with_setup_phase();
    }
    let learned = file.as_ref().is_some_and(|file| file.spec.egress.reach == Reach::Learn);
    let is_traced =
        file.as_ref().is_some_and(|file| file.spec.denied_calls == DeniedCalls::Recorded);
    let calls = if is_traced { Some(denied_calls(&home, &run.id)?) } else { None };
    if args.json {
        let list = learned.then(|| account.minimal_allow_list());
        report::json(&serde_json::json!({
            "run": run.id, "network": account, "allow": list, "system_calls": calls,
        }))?;
        return Ok(0);
    }
    let ran_on = file.as_ref().and_then(|file| file.outcome.as_ref()).map(|ended| ended.backend);
    if ran_on == Some(BackendName::Host) {
        report::out("This run had the host's network, without a list: nothing was denied.\n");
        return Ok(0);
    }
    let has_network_access = file.as_ref().is_none_or(|file| file.spec.has_network_access());
    let shut = file.as_ref().is_some_and(|file| !file.spec.has_network_access_after_setup());
    report::out(&page(&account, has_network_access));
    if has_network_access && shut {
        report::out("Only the set-up had network access. After it, the run had none.\n");
    }
    if learned {
        report::out(&learned_list(&account));
    }
    match calls {
        Some(calls) => report::out(&calls_page(&calls)),
        // The host backend has no filter.
        None if file.as_ref().is_some_and(|file| file.spec.backend == BackendChoice::Host) => {}
        None => report::out(&format!("{DIM}{}{DIM:#}\n", Hint::TraceDenied)),
    }
    Ok(0)
}

fn page(account: &NetworkReport, has_network_access: bool) -> String {
    let mut text = String::new();
    if !has_network_access {
        text.push_str(
            "This run had no network access: its list of allowed hosts was empty.\n\
             So it had no proxy, and what it tried to reach is not known.\n",
        );
        text.push_str("  to allow one host: --allow-host HOST, or in belljar.toml\n");
        text.push_str("  [network]\n  allow = [\"HOST\"]\n");
        return text;
    }
    for denied in account.denied.iter().take(MAX_SHOWN) {
        text.push_str(&denial(denied));
    }
    if let Some(more) = account.denied.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("… and {more} more denials; --json has all of them\n"));
    }
    for hit in &account.budgets {
        text.push_str(&format!("{WARN}budget{WARN:#}  {}\n", budget(hit)));
    }
    let failed = account.reached.iter().filter(|reached| reached.failed > 0);
    for reached in failed {
        let error = escape(reached.error.as_deref().unwrap_or_default().as_bytes());
        let (host, port) = (escape(reached.host.as_bytes()), reached.port);
        text.push_str(&format!(
            "{WARN}failed{WARN:#}  {BOLD}{host}:{port}{BOLD:#}{}\n",
            times(reached.failed)
        ));
        text.push_str(&format!(
            "        {}\n",
            folded(&format!("allowed, but the connection failed: {error}"), 8)
        ));
    }
    if account.lost {
        text.push_str(&format!(
            "{BAD}lost{BAD:#}    the proxy died; after that, the run had no network access\n"
        ));
    }
    if text.is_empty() {
        text.push_str(&format!("{GOOD}Nothing was denied.{GOOD:#}\n"));
    }
    text.extend(account.changes.iter().map(list_change));
    text
}

/// What the operator changed.
pub(super) fn list_change(change: &ListChange) -> String {
    let (added, removed) = change.differences();
    let mut text = format!(
        "{WARN}changed{WARN:#} {BOLD}the network list{BOLD:#} {DIM}at {}{DIM:#}\n",
        escape(change.time.as_bytes())
    );
    let all = added.iter().map(|entry| ("allowed", entry));
    for (verb, entry) in all.chain(removed.iter().map(|entry| ("removed", entry))) {
        let line = format!("{verb} {}", escape(entry.as_bytes()));
        text.push_str(&format!("        {}\n", folded(&line, 8)));
    }
    text
}

/// Refused system calls. No setting changes what the filter refuses, so that is said once.
fn calls_page(calls: &[DeniedCallSummary]) -> String {
    if calls.is_empty() {
        return format!("{GOOD}The filter refused no system call.{GOOD:#}\n");
    }
    let mut text = String::new();
    for call in calls.iter().take(MAX_SHOWN) {
        let what = escape(call.call().as_bytes());
        let errno = escape(call.errno.as_bytes());
        text.push_str(&format!(
            "{BAD}refused{BAD:#} {BOLD}{what}{BOLD:#} with {errno}{}\n",
            times(call.count)
        ));
        text.push_str(&format!("        {}\n", folded(&call.explanation, 8)));
    }
    if let Some(more) = calls.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("… and {more} more system calls; --json has all of them\n"));
    }
    text.push_str("No setting allows a system call: the filter is the same in every run.\n");
    text
}

fn denial(denied: &DeniedHost) -> String {
    let what = escape(denied.what().as_bytes());
    let mut text = format!(
        "{BAD}denied{BAD:#}  {BOLD}{what}{BOLD:#}{}{}\n",
        whom(denied),
        times(denied.count)
    );
    text.push_str(&format!("        {}\n", folded(&escape(denied.why().as_bytes()), 8)));
    if let Some(line) = denied.line() {
        let section = denied.section();
        let mut lines: Vec<String> = line.lines().map(|line| escape(line.as_bytes())).collect();
        // A table of its own has several keys, one per line.
        if section == "[[route]]" {
            lines.insert(0, format!("{DIM}{section}{DIM:#}"));
        } else if let Some(first) = lines.first_mut() {
            *first = format!("{DIM}{section}{DIM:#} {first}");
        }
        lines.iter().for_each(|line| text.push_str(&format!("        {line}\n")));
    }
    text
}

fn whom(denied: &DeniedHost) -> &'static str {
    match denied.stage {
        PolicyPhase::Setup => " to the set-up",
        PolicyPhase::Run => "",
    }
}

fn times(count: u64) -> String {
    if count > 1 { format!(" {DIM}({count} times){DIM:#}") } else { String::new() }
}

fn budget(hit: &EgressBudgetHit) -> String {
    let EgressBudgetHit { what, limit, host } = hit;
    let what = escape(what.as_bytes());
    match host {
        Some(host) => format!("{what} reached {limit}, for {}", escape(host.as_bytes())),
        None => format!("{what} reached {limit}"),
    }
}

/// The hosts that `--learn` found, as a manifest section.
pub(crate) fn learned_list(account: &NetworkReport) -> String {
    let rules: BTreeSet<String> = account.minimal_allow_list().into_iter().collect();
    if rules.is_empty() {
        return "# no host was used; an empty list is enough\n[network]\nallow = []\n".to_owned();
    }
    let mut text =
        "# the smallest list that allows what was used\n[network]\nallow = [\n".to_owned();
    for rule in rules {
        text.push_str(&format!("  \"{}\",\n", escape(rule.as_bytes())));
    }
    text.push_str("]\n");
    text
}
