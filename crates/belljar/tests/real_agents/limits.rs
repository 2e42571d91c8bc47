//! Budgets, and the memory limit.

use belljar_testkit::{RealAgent, Turn, TurnUsage};

use crate::stage::Stage;

/// More than any budget here allows.
fn endless() -> impl Iterator<Item = Turn> {
    std::iter::repeat_n(Turn::run("date >> made.txt"), 50)
}

pub(crate) fn max_turns(stage: &Stage<'_>) {
    stage.model.play(endless());
    let words = ["--json", "--name", "work", "--prompt", "Please do the work.", "--max-turns", "3"];
    let done = stage.run(&words).done();
    let result = done.json();
    assert_eq!(result["reason"], "max_turns", "{done}");
    // What is stopped from outside may already have asked for one more.
    let asked = stage.model.conversation().len();
    assert!((3..=5).contains(&asked), "{asked} requests");
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}

/// Claude reports tokens while it works, and its cost; the others report tokens when they end.
pub(crate) fn max_tokens(stage: &Stage<'_>) {
    stage.model.charge(TurnUsage { input_tokens: 40_000, output_tokens: 20 });
    let words = ["--json", "--name", "work", "--prompt", "Please do the work."];
    let (script, budget, reason): (Vec<Turn>, _, _) = match stage.agent {
        RealAgent::Claude => (endless().collect(), ["--max-cost-usd", "0.3"], "max_cost"),
        RealAgent::Codex | RealAgent::Gemini => {
            let two = [Turn::run("date >> made.txt"), Turn::say("Done.")];
            (two.to_vec(), ["--max-tokens", "50000"], "max_tokens")
        }
    };
    stage.model.play(script);
    let done = stage.run(&[&words[..], &budget, &["--max-iterations", "3"]].concat()).done();
    let result = done.json();
    assert_eq!(result["reason"], reason, "{done}");
    let asked = stage.model.conversation().len();
    assert!((2..=6).contains(&asked), "{asked} requests");
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}

/// The limit is less than any of them needs to start.
pub(crate) fn out_of_memory(stage: &Stage<'_>) {
    stage.model.play([Turn::say("It fits.")]);
    let words = ["--json", "--name", "work", "--prompt", "Please do the work."];
    let done = stage.run(&[&words[..], &["--memory", "16m"]].concat()).done();
    let result = done.json();
    assert_eq!(result["reason"], "oom", "{done}");
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
    // The control: the same with the usual limit.
    stage.model.play([Turn::say("It fits.")]);
    let done = stage.run(&words).done();
    assert_eq!(done.json()["reason"], "exited", "{done}");
    assert_eq!(done.code(), 0, "{done}");
}
