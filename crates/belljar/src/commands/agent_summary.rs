//! Formats an agent's settings and results: counts, durations, limits and verdicts.

use belljar::spec::{
    AgentSpec, Budget, Exit, Failure, HumanDuration, IterationReport, LoopSpec, ResumeKind,
    ResumeOrigin, TokenUsage, Until,
};

use super::wrap::one_line;

/// `1 turn`, `2 turns`.
pub(super) fn counted(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// `980`, `3.4k`, `34k`, `1.2M`.
pub(super) fn short(count: u64) -> String {
    let tenths =
        |unit: u64, letter: &str| format!("{}.{}{letter}", count / unit, count % unit * 10 / unit);
    match count {
        0..1_000 => count.to_string(),
        1_000..10_000 => tenths(1_000, "k"),
        10_000..1_000_000 => format!("{}k", count / 1_000),
        1_000_000..10_000_000 => tenths(1_000_000, "M"),
        _ => format!("{}M", count / 1_000_000),
    }
}

/// `850ms`, `4.2s`, `3m 12s`, `2h 5m`.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms}ms"),
        1..60 => format!("{seconds}.{}s", ms % 1000 / 100),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Turns, tokens and cost; a zero count is left out.
pub(super) fn used(turns: u64, usage: &TokenUsage) -> Vec<String> {
    let mut parts = Vec::new();
    if turns > 0 {
        parts.push(counted(turns, "turn"));
    }
    if usage.tokens() > 0 {
        parts.push(format!("{} tokens", short(usage.tokens())));
    }
    if usage.cost_usd.micros() > 0 {
        parts.push(usage.cost_usd.to_string());
    }
    parts
}

/// How an iteration ended, in one or two words.
pub(super) fn result(report: &IterationReport) -> String {
    match (&report.failure, report.done) {
        (None, Some(true)) => "done".to_owned(),
        (None, _) => "ok".to_owned(),
        (Some(failure), _) => self::failure(failure),
    }
}

pub(super) fn failure(failure: &Failure) -> String {
    match failure {
        // Some agents report "success" together with an error flag.
        Failure::Reported { code: Some(word) } if word != "success" => {
            format!("failed ({})", one_line(word, 40))
        }
        Failure::Reported { .. } => "failed".to_owned(),
        Failure::Exit { exit } if exit.code == Some(0) => "failed (no result)".to_owned(),
        Failure::Exit { exit } => format!("failed ({})", ended(exit)),
        Failure::Idle => "idle".to_owned(),
        Failure::Oom { .. } => "out of memory".to_owned(),
        Failure::NotStarted { message, .. } => format!("not started ({})", one_line(message, 60)),
        Failure::Budget { what: Budget::Time } => "out of time".to_owned(),
        Failure::Budget { what: Budget::Turns } => "out of turns".to_owned(),
        Failure::Budget { what: Budget::Cost } => "out of money".to_owned(),
        Failure::Budget { what: Budget::Tokens } => "out of tokens".to_owned(),
    }
}

pub(super) fn ended(exit: &Exit) -> String {
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

/// `claude, model opus`, or the program itself.
pub(super) fn agent(spec: &AgentSpec) -> String {
    let name = match spec.kind.has_preset() {
        true => spec.kind.name().to_owned(),
        false => one_line(&belljar::spec::text::quote_command(&spec.program), 200),
    };
    match &spec.model {
        Some(model) => format!("{name}, model {}", one_line(model, 60)),
        None => name,
    }
}

/// The limits of a loop.
pub(super) fn limits(repeat: &LoopSpec) -> String {
    let mut parts = Vec::new();
    parts.extend(repeat.until.as_ref().map(|until| match until {
        Until::File { path } => format!("until {path} exists"),
        Until::Command { argv, .. } => {
            format!("until {} succeeds", belljar::spec::text::quote_command(argv))
        }
        Until::Says { phrase } => format!("until a message contains \"{}\"", one_line(phrase, 60)),
    }));
    parts.extend(repeat.max_iterations.map(|most| counted(u64::from(most), "iteration")));
    parts.extend(repeat.max_time.map(|most| {
        HumanDuration::from_millis(u64::try_from(most.as_millis()).unwrap_or(u64::MAX)).to_string()
    }));
    parts.extend(repeat.max_cost.map(|most| most.to_string()));
    parts.extend(repeat.max_turns.map(|most| counted(most, "turn")));
    parts.extend(repeat.max_tokens.map(|most| format!("{} tokens", short(most))));
    parts.extend(repeat.max_unchanged.map(|most| format!("{most} in a row without a change")));
    parts.extend(repeat.max_failures.map(|most| format!("{most} failures in a row")));
    parts.join(", ")
}

/// Which run and checkpoint a run was resumed or forked from.
pub(super) fn origin(origin: &ResumeOrigin) -> String {
    let ResumeOrigin { kind, from, iteration, changes, .. } = origin;
    let verb = match kind {
        ResumeKind::Resume => "continues",
        ResumeKind::Fork => "forked from",
    };
    let place = match iteration {
        0 => "before its first iteration".to_owned(),
        _ => format!("after iteration {iteration}"),
    };
    let changed = match changes.as_slice() {
        [] => String::new(),
        changes => format!("; changed: {}", one_line(&changes.join(", "), 200)),
    };
    format!("{verb} run {from} {place}{changed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0, 999, 1_000, 3_456, 34_567, 999_999, 1_234_567, 45_678_901].map(short);
        assert_eq!(shown, ["0", "999", "1.0k", "3.4k", "34k", "999k", "1.2M", "45M"]);
        let spans = [0, 850, 4_250, 59_999, 192_000, 3_600_000, 90_000_000].map(span);
        assert_eq!(spans, ["0ms", "850ms", "4.2s", "59.9s", "3m 12s", "1h 0m", "25h 0m"]);
        assert_eq!([counted(1, "path"), counted(0, "path")], ["1 path", "0 paths"]);
    }
}
