//! What `logs --agent`, `show` and `ps` tell of an agent's runs, from records as a supervisor writes them.

use std::fs::{self, File};
use std::io::Write;

use belljar::record::{HomeKey, Recorder, Secrets};
use belljar::spec::{
    AgentReport, AgentTotals, CheckpointReport, EventKind, IterationReport, Money, ResumeKind,
    ResumeOrigin, RunId, StopReason, TokenUsage,
};
use belljar_testkit::{Done, Lab};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

/// Decided as a real run was, but for its agent.
struct Agents {
    lab: Lab,
    like: Value,
}

struct Writing<'a> {
    agents: &'a Agents,
    id: RunId,
    recorder: Recorder,
    record: Value,
    held: Option<File>,
}

impl Agents {
    fn new() -> Self {
        let lab = Lab::me();
        lab.run(["-q", "--", "true"]).done().expect(0);
        let like = lab.record(&lab.runs()[0]);
        Self { lab, like }
    }

    fn belljar(&self, words: &[&str]) -> Done {
        self.lab.belljar(words).done()
    }

    fn begin(&self, number: u64, resumed_from: Option<&ResumeOrigin>) -> Writing<'_> {
        let id = RunId::from_parts(1_700_000_000_000 + number * 1000, number * 977);
        let mut record = self.like.clone();
        record["id"] = json!(id);
        record["spec"]["command"] = json!([]);
        record["spec"]["name"] = json!("nightly");
        record["spec"]["agent"] = json!({
            "agent": { "kind": "claude", "program": ["claude"], "model": "m-1",
                "prompt": "# Task\n\nFix the parser.\n", "permissions": "bypass", "auth": "secret" },
            "loop": { "until": { "type": "file", "path": "DONE" }, "max_iterations": 5,
                "max_cost": 25.0, "pause": 0, "backoff": 10_000, "session": "fresh", "checkpoints": 10 },
        });
        record.as_object_mut().unwrap().remove("outcome");
        let directory = self.lab.home().join("runs").join(id.as_str());
        fs::create_dir_all(directory.join("home")).unwrap();
        let key = HomeKey::load(&self.lab.home()).unwrap().for_run(&id);
        let mut recorder = Recorder::create(&directory, key, Secrets::default(), 1 << 20).unwrap();
        let mut start = record.clone();
        if let Some(resumed_from) = resumed_from {
            start["resumed_from"] = json!(resumed_from);
        }
        recorder.event(EventKind::RunStart, &start).unwrap();
        fs::write(directory.join("run.json"), record.to_string()).unwrap();
        Writing { agents: self, id, recorder, record, held: None }
    }
}

impl Writing<'_> {
    fn event(&mut self, kind: EventKind, data: Value) -> &mut Self {
        self.recorder.event(kind, &data).unwrap();
        self.recorder.flush().unwrap();
        self
    }

    /// As if its supervisor were there.
    fn live(&mut self) {
        let path = self.agents.lab.home().join("live").join(self.id.as_str());
        let mut held = File::create(path).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        write!(held, "running").unwrap();
        self.held = Some(held);
    }

    fn iteration(&mut self, iteration: u32, message: &str) {
        let own = json!({ "iteration": iteration, "exec": iteration });
        self.event(EventKind::IterationStart, own);
        let said = json!({ "type": "message", "role": "assistant", "text": message, "iteration": iteration });
        self.event(EventKind::AgentMessage, said);
        let call = json!({ "type": "tool_call", "tool": "Bash", "input": "make test", "iteration": iteration });
        self.event(EventKind::AgentToolCall, call);
        let usage = TokenUsage {
            input_tokens: 30_000,
            output_tokens: 4_000,
            cached_tokens: 0,
            cost_usd: Money::from_micros(420_000),
        };
        let report = IterationReport {
            iteration,
            exec: iteration,
            failure: None,
            wall_ms: 192_000,
            turns: 12,
            usage,
            changed: 6,
            session: None,
            session_totals: Default::default(),
            message: Some(message.to_owned()),
            done: Some(iteration == 5),
            unparsed: 0,
            dropped: 0,
            checkpoint: CheckpointReport::default(),
            totals: totals(iteration),
        };
        let directory = self.agents.lab.home().join("runs").join(self.id.as_str());
        fs::create_dir_all(directory.join(format!("checkpoints/{iteration:06}"))).unwrap();
        self.event(EventKind::Checkpoint, json!(report));
    }

    fn stop(mut self, reason: StopReason, why: &str) -> (RunId, String) {
        let agent = AgentReport {
            totals: totals(5),
            run_iterations: 2,
            unfinished_iteration: None,
            why: why.to_owned(),
            message: Some("All done.".to_owned()),
        };
        let mut outcome = self.agents.like["outcome"].clone();
        outcome["id"] = json!(self.id);
        outcome["reason"] = json!(reason);
        outcome["agent"] = json!(agent);
        self.recorder.stop(&outcome).unwrap();
        self.record["outcome"] = outcome;
        let directory = self.agents.lab.home().join("runs").join(self.id.as_str());
        fs::write(directory.join("run.json"), self.record.to_string()).unwrap();
        (self.id, self.recorder.head().hash)
    }
}

fn totals(iterations: u32) -> AgentTotals {
    let count = u64::from(iterations);
    AgentTotals {
        iterations,
        turns: 12 * count,
        usage: TokenUsage {
            input_tokens: 34_000 * count,
            output_tokens: 0,
            cached_tokens: 0,
            cost_usd: Money::from_micros(420_000 * count),
        },
        elapsed_ms: 192_000 * count,
        failures_in_a_row: 0,
        unchanged_in_a_row: 0,
    }
}

/// Lost in iteration 4, and resumed.
fn line(agents: &Agents) -> (RunId, RunId) {
    let mut first = agents.begin(1, None);
    for number in 1..=3 {
        first.iteration(
            number,
            &format!(
                "Step {number} is \u{1b}[31mdone\u{202e}, and it was a long one that says much."
            ),
        );
    }
    first.event(EventKind::IterationStart, json!({ "iteration": 4, "exec": 4 }));
    let (from, head) = first.stop(StopReason::Lost, "");
    let resumed_from = ResumeOrigin {
        kind: ResumeKind::Resume,
        from,
        continues: from,
        iteration: 3,
        head,
        totals: totals(3),
        session: None,
        session_totals: Default::default(),
        changes: Vec::new(),
        unchanged: Default::default(),
    };
    let mut second = agents.begin(2, Some(&resumed_from));
    second.iteration(4, "More.");
    second.iteration(5, "All done.");
    (from, second.stop(StopReason::Done, "the file DONE is there").0)
}

fn reads_at_80_columns(done: &Done) {
    for line in done.out().lines() {
        assert!(line.chars().count() <= 80, "{}: {line}", line.chars().count());
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

#[test]
fn show_tells_the_whole_line_of_runs() {
    let agents = Agents::new();
    let (first, second) = line(&agents);
    let done = agents.belljar(&["show", second.as_str()]);
    done.expect(0);
    reads_at_80_columns(&done);
    let page = done.out();
    for part in [
        "claude, model m-1",
        "# Task",
        "until DONE exists, 5 iterations, $25.00",
        &format!("continues run {first} after iteration 3"),
        "the file DONE is there",
        "5 iterations, 60 turns, 170k tokens, $2.10, 16m 0s",
        "LAST MESSAGE",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let rows: Vec<&str> = page.lines().filter(|line| line.contains("$0.42")).collect();
    assert_eq!(rows.len(), 5, "{page}");
    assert!(rows[0].contains(first.tail()) && rows[0].contains("ok"), "{page}");
    assert!(rows[4].contains(second.tail()) && rows[4].contains("done"), "{page}");
    let parent = agents.belljar(&["show", first.as_str()]).expect(0).out();
    assert!(parent.contains(&format!("{second} continues it after iteration 3")), "{parent}");
    assert!(parent.contains("iteration 4 did not finish"), "{parent}");

    let data = agents.belljar(&["show", "--json", second.as_str()]).expect(0).json();
    let listed = data["iterations"].as_array().unwrap();
    let numbers: Vec<_> = listed.iter().map(|one| one["iteration"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!((&listed[0]["run"], &listed[4]["run"]), (&json!(first), &json!(second)));
    assert_eq!(listed[4]["kept"], true);
    assert_eq!((&data["reason"], &data["resumed_from"]["from"]), (&json!("done"), &json!(first)));
    assert_eq!(data["agent"]["run_iterations"], 2);

    let listed = agents.belljar(&["ps", "-a"]).expect(0).out();
    assert_eq!(listed.lines().filter(|line| line.contains("agent claude")).count(), 2, "{listed}");
    // A run with a command has nothing of this.
    let plain = agents.like["id"].as_str().unwrap();
    let page = agents.belljar(&["show", plain]).expect(0).out();
    assert!(!page.contains("LAST MESSAGE") && !page.contains("agent"), "{page}");
}

#[test]
fn the_log_reads_as_a_person_would() {
    let agents = Agents::new();
    let (first, second) = line(&agents);
    let done = agents.belljar(&["logs", "--agent", second.as_str()]);
    done.expect(0);
    reads_at_80_columns(&done);
    let text = done.out();
    for part in [
        &format!("continues run {first}"),
        "── iteration 4 ──",
        "All done.",
        "● Bash: make test",
        "── iteration 5 ended: done, 12 turns, 34k tokens, $0.42, 6 paths changed",
        "── ended: done, 5 iterations, 60 turns",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let hostile = agents.belljar(&["logs", "--agent", first.as_str()]);
    hostile.expect(0);
    reads_at_80_columns(&hostile);
    assert!(hostile.out().contains("\\u{1b}[31mdone\\u{202e}"), "{hostile}");

    let data = agents.belljar(&["logs", "--agent", "--json", second.as_str()]).expect(0).out();
    let events: Vec<Value> = data.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2 * 4);
    assert!(events.iter().all(|event| event["data"]["iteration"].is_u64()));

    let plain = agents.like["id"].as_str().unwrap();
    agents.belljar(&["logs", "--agent", plain]).expect(125).says(&["has no agent"]);
    agents.belljar(&["logs", "--json", plain]).expect(2);
    let late = ["logs", "--agent", "--since", "2099-01-01T00:00:00Z", second.as_str()];
    assert_eq!(agents.belljar(&late).expect(0).out(), "");
}

#[test]
fn the_log_follows_a_run_that_lives() {
    let agents = Agents::new();
    let mut run = agents.begin(7, None);
    run.live();
    run.iteration(1, "The first.");
    let mut following = agents.lab.belljar(["logs", "-f", "--agent", run.id.as_str()]).spawn();
    following.wait_for_output("The first.");
    assert!(following.is_running());
    let page = agents.belljar(&["show", run.id.as_str()]).expect(0).out();
    assert!(page.contains("The first."), "{page}");
    assert!(agents.belljar(&["ps"]).expect(0).out().contains("agent claude"));
    run.iteration(2, "The second.");
    following.wait_for_output("The second.");
    let path = agents.lab.home().join("live").join(run.id.as_str());
    let held = run.held.take();
    run.stop(StopReason::MaxIterations, "2 iterations were asked for");
    fs::remove_file(path).unwrap();
    drop(held);
    let done = following.done();
    assert!(done.out().contains("── ended: max_iterations"), "{done}");
    assert_eq!(done.code(), 0);
}
