//! The lineage of a run, read from records as a supervisor writes them.

use std::fs;

use crate::runs::{Runs, id};
use belljar_record::{EVENTS, HomeKey, Recorder, Secrets};
use belljar_run::lineage::{Broken, Child, Lineage, LineageError, lineage};
use belljar_run::retention::apply_retention;
use belljar_spec::{
    AgentReport, AgentTotals, EventKind, IterationReport, ResumeKind, ResumeOrigin, Retention,
    RunId, StopReason, TokenUsage,
};
use serde_json::json;

/// Writes the record of a run.
struct Writing<'a> {
    runs: &'a Runs,
    run: RunId,
    recorder: Recorder,
}

impl<'a> Writing<'a> {
    fn begin(runs: &'a Runs, number: u64, origin: Option<&ResumeOrigin>) -> Self {
        let run = id(number);
        let directory = runs.home.run_dir(&run);
        fs::create_dir_all(&directory).unwrap();
        let key = HomeKey::load_or_make(runs.home.path()).unwrap().for_run(&run);
        let mut recorder = Recorder::create(&directory, key, Secrets::default(), 1 << 20).unwrap();
        let mut start = json!({ "v": 2, "id": run });
        if let Some(origin) = origin {
            start["resumed_from"] = serde_json::to_value(origin).unwrap();
        }
        recorder.event(EventKind::RunStart, &start).unwrap();
        Self { runs, run, recorder }
    }

    fn begun(&mut self, iteration: u32) {
        let data = json!({ "iteration": iteration, "exec": iteration });
        self.recorder.event(EventKind::IterationStart, &data).unwrap();
    }

    /// Records the start and the end of an iteration, with a checkpoint.
    fn iteration(&mut self, iteration: u32) {
        self.begun(iteration);
        let report = report(iteration, &format!("{iteration} in {}", self.run));
        let directory = self.runs.home.run_dir(&self.run);
        fs::create_dir_all(directory.join(format!("checkpoints/{iteration:06}"))).unwrap();
        self.recorder.event(EventKind::Checkpoint, &report).unwrap();
        self.recorder.barrier().unwrap();
    }

    fn stop(mut self, reason: StopReason) -> String {
        let agent = AgentReport {
            totals: AgentTotals::default(),
            run_iterations: 1,
            unfinished_iteration: None,
            why: "because".to_owned(),
            message: None,
        };
        self.recorder.stop(&json!({ "reason": reason, "agent": agent })).unwrap();
        self.recorder.head().hash
    }

    /// Its supervisor is killed.
    fn lost(mut self) -> String {
        self.recorder.flush().unwrap();
        self.recorder.head().hash
    }
}

fn report(iteration: u32, message: &str) -> IterationReport {
    let usage = TokenUsage { input_tokens: 10, ..TokenUsage::default() };
    IterationReport {
        iteration,
        exec: iteration,
        failure: None,
        wall_ms: 5,
        turns: 1,
        usage,
        changed: 2,
        session: None,
        message: Some(message.to_owned()),
        done: None,
        unparsed: 0,
        dropped: 0,
        checkpoint: Default::default(),
        session_totals: Default::default(),
        totals: AgentTotals {
            iterations: iteration,
            turns: u64::from(iteration),
            ..AgentTotals::default()
        },
    }
}

fn origin(kind: ResumeKind, from: u64, iteration: u32, head: &str) -> ResumeOrigin {
    let totals = AgentTotals { iterations: iteration, turns: 70, ..AgentTotals::default() };
    let (from, head) = (id(from), head.to_owned());
    ResumeOrigin {
        kind,
        from,
        continues: from,
        iteration,
        head,
        totals,
        session: None,
        session_totals: Default::default(),
        changes: Vec::new(),
        unchanged: Default::default(),
    }
}

fn numbers(line: &Lineage) -> Vec<(u32, RunId)> {
    line.iterations.iter().map(|one| (one.report.iteration, one.run)).collect()
}

#[test]
fn a_new_run_has_only_itself_in_its_lineage() {
    let runs = Runs::new();
    let mut one = Writing::begin(&runs, 1, None);
    one.iteration(1);
    one.iteration(2);
    one.begun(3);
    let head = one.stop(StopReason::Stopped);
    let line = lineage(&runs.home, &id(1)).unwrap();
    assert_eq!(numbers(&line), [(1, id(1)), (2, id(1))]);
    let [member] = line.runs.as_slice() else { panic!("{:?}", line.runs) };
    assert_eq!((member.last_started, member.reason), (Some(3), Some(StopReason::Stopped)));
    assert_eq!((&member.head, &member.origin), (&head, &None));
    assert_eq!(member.agent.as_ref().unwrap().why, "because");
    assert_eq!((line.broken.as_ref(), line.children.as_slice()), (None, &[][..]));
    assert_eq!(line.totals().turns, 2);

    fs::remove_dir(runs.home.run_dir(&id(1)).join("checkpoints/000001")).unwrap();
    let line = lineage(&runs.home, &id(1)).unwrap();
    let kept: Vec<u32> = line.checkpoints().map(|one| one.report.iteration).collect();
    assert_eq!(kept, [2], "and the iteration is still listed: {:?}", numbers(&line));
    assert!(line.iteration(1).is_some_and(|one| !one.kept));
}

#[test]
fn each_iteration_is_listed_once_with_the_run_that_counts() {
    let runs = Runs::new();
    let mut first = Writing::begin(&runs, 1, None);
    (1..=3).for_each(|number| first.iteration(number));
    first.begun(4);
    let head = first.lost();
    // From before its end: 3 is done once more.
    let mut second = Writing::begin(&runs, 2, Some(&origin(ResumeKind::Resume, 1, 2, &head)));
    second.iteration(3);
    second.iteration(4);
    let head = second.stop(StopReason::Stopped);
    // Came to nothing, and is continued all the same.
    let third = Writing::begin(&runs, 3, Some(&origin(ResumeKind::Resume, 2, 4, &head)));
    let head = third.lost();
    let mut fourth = Writing::begin(&runs, 4, Some(&origin(ResumeKind::Resume, 3, 4, &head)));
    fourth.iteration(5);
    fourth.lost();

    let line = lineage(&runs.home, &id(4)).unwrap();
    let expected = [(1, id(1)), (2, id(1)), (3, id(2)), (4, id(2)), (5, id(4))];
    assert_eq!(numbers(&line), expected);
    let ids: Vec<RunId> = line.runs.iter().map(|one| one.run).collect();
    assert_eq!(ids, [id(1), id(2), id(3), id(4)]);
    assert_eq!(line.broken, None);
    assert_eq!(line.iteration(3).unwrap().report.message, Some(format!("3 in {}", id(2))));

    let third = lineage(&runs.home, &id(3)).unwrap();
    assert_eq!(numbers(&third), expected[..4]);
    assert_eq!(third.last().unwrap().last_started, None);
    let child = Child { run: id(4), kind: ResumeKind::Resume, iteration: 4 };
    assert_eq!(third.children, [child]);
    assert_eq!(numbers(&lineage(&runs.home, &id(1)).unwrap()).len(), 3, "as it was by itself");
}

#[test]
fn a_fork_starts_counting_again_and_is_a_child() {
    let runs = Runs::new();
    let mut first = Writing::begin(&runs, 1, None);
    (1..=2).for_each(|number| first.iteration(number));
    let head = first.recorder.head().hash; // in the middle: it lives on
    first.iteration(3);
    let mut fork = Writing::begin(&runs, 2, Some(&origin(ResumeKind::Fork, 1, 2, &head)));
    fork.iteration(1);
    fork.lost();
    let mut resumed = Writing::begin(&runs, 3, Some(&origin(ResumeKind::Resume, 1, 2, &head)));
    resumed.iteration(3);
    resumed.lost();
    assert_eq!(numbers(&lineage(&runs.home, &id(2)).unwrap()), [(1, id(2))]);
    let line = lineage(&runs.home, &id(3)).unwrap();
    assert_eq!(numbers(&line), [(1, id(1)), (2, id(1)), (3, id(3))]);
    let children = lineage(&runs.home, &id(1)).unwrap().children;
    let hows: Vec<_> = children.iter().map(|child| (child.run, child.kind)).collect();
    assert_eq!(hows, [(id(2), ResumeKind::Fork), (id(3), ResumeKind::Resume)]);
}

/// A lineage of two runs; `damage` is applied to the first.
fn after(damage: impl FnOnce(&Runs)) -> Lineage {
    let runs = Runs::new();
    let mut first = Writing::begin(&runs, 1, None);
    first.iteration(1);
    let head = first.stop(StopReason::Lost);
    let mut second = Writing::begin(&runs, 2, Some(&origin(ResumeKind::Resume, 1, 1, &head)));
    second.iteration(2);
    second.lost();
    assert_eq!(numbers(&lineage(&runs.home, &id(2)).unwrap()).len(), 2, "before it is damaged");
    damage(&runs);
    lineage(&runs.home, &id(2)).unwrap()
}

#[test]
fn a_broken_lineage_reports_the_run() {
    let gone = after(|runs| fs::remove_dir_all(runs.home.run_dir(&id(1))).unwrap());
    assert_eq!(gone.broken, Some(Broken::Gone { run: id(1) }));
    assert_eq!(numbers(&gone), [(2, id(2))]);
    assert_eq!(gone.totals().iterations, 2, "what was used is known all the same");

    let cut = after(|runs| {
        let path = runs.home.run_dir(&id(1)).join(EVENTS);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        fs::write(&path, lines[..lines.len() - 1].concat()).unwrap();
    });
    assert_eq!(cut.broken, Some(Broken::Changed { run: id(1) }));
    assert_eq!(numbers(&cut), [(2, id(2))]);

    let forged = after(|runs| {
        let path = runs.home.run_dir(&id(1)).join(EVENTS);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"turns\":1", "\"turns\":0")).unwrap();
    });
    assert!(matches!(forged.broken, Some(Broken::Unreadable { .. })), "{:?}", forged.broken);
}

#[test]
fn a_cyclic_lineage_ends() {
    let runs = Runs::new();
    let one = Writing::begin(&runs, 1, Some(&origin(ResumeKind::Resume, 1, 0, "")));
    one.lost();
    let line = lineage(&runs.home, &id(1)).unwrap();
    assert_eq!(line.broken, Some(Broken::Endless { run: id(1) }));
}

#[test]
fn a_run_without_a_record_is_an_error() {
    let runs = Runs::new();
    Writing::begin(&runs, 1, None).lost();
    lineage(&runs.home, &id(1)).unwrap();
    let error = lineage(&runs.home, &id(2)).unwrap_err();
    assert!(matches!(error, LineageError::Record { .. }), "{error}");
    fs::create_dir_all(runs.home.run_dir(&id(3))).unwrap();
    fs::write(runs.home.run_dir(&id(3)).join(EVENTS), "").unwrap();
    let error = lineage(&runs.home, &id(3)).unwrap_err();
    assert!(matches!(error, LineageError::NoStart { .. }), "{error}");
}

/// A stopped run of an agent, with a sandbox and one checkpoint.
fn agents_run(runs: &Runs, number: u64, origin: Option<&ResumeOrigin>, checkpoints: u32) -> String {
    runs.stopped(number, None);
    let mut writing = Writing::begin(runs, number, origin);
    (1..=checkpoints).for_each(|iteration| writing.iteration(iteration));
    writing.stop(StopReason::Stopped)
}

#[test]
fn retention_keeps_what_can_be_resumed() {
    let runs = Runs::new();
    let first = agents_run(&runs, 1, None, 2); // continued by 3, which goes on by itself
    agents_run(&runs, 2, None, 1); // no run resumes it
    let third = agents_run(&runs, 3, Some(&origin(ResumeKind::Resume, 1, 2, &first)), 1);
    let fourth = agents_run(&runs, 4, Some(&origin(ResumeKind::Resume, 3, 1, &third)), 1);
    // Came to nothing, so that the one before is still needed.
    agents_run(&runs, 5, Some(&origin(ResumeKind::Resume, 4, 1, &fourth)), 0);
    runs.stopped(6, None);
    let kept = Retention { sandboxes: 0, runs: 100 };
    let done = apply_retention(&runs.home, &None, kept).unwrap();
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    assert_eq!(done.resumable, [id(2), id(3), id(4)], "and what the last was born from");
    assert_eq!(done.sandboxes, [id(1), id(5), id(6)]);
    assert!(runs.home.run_dir(&id(2)).join("checkpoints/000001").exists());
    // Nor whole; by hand it can go all the same.
    let done = apply_retention(&runs.home, &None, Retention { sandboxes: 0, runs: 1 }).unwrap();
    assert_eq!(done.runs, [id(1), id(5)]);
    assert!(runs.has_sandbox(&id(2)));
    let info = belljar_record::store::find(&runs.home, id(2).as_str()).unwrap();
    belljar_run::retention::remove(
        &runs.home,
        &info,
        belljar_run::retention::UnreviewedChanges::Keep,
    )
    .unwrap();
    assert!(!runs.has_directory(&id(2)));
}

#[test]
fn retention_protects_a_limited_number() {
    let runs = Runs::new();
    (1..=22).for_each(|number| drop(agents_run(&runs, number, None, 1)));
    let done = apply_retention(&runs.home, &None, Retention { sandboxes: 0, runs: 100 }).unwrap();
    assert_eq!(done.sandboxes, [id(1), id(2)]);
    assert_eq!(done.resumable.len(), 20);
}
