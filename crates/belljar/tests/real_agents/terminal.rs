//! `belljar run --agent X -t`: the agent's own interface starts, gets past its first questions, and works.

use std::thread::sleep;
use std::time::Duration;

use belljar_testkit::{PtyRun, RealAgent, Turn, until};

use crate::stage::{Place, Stage, with};

const UP: &str = "\x1b[A";
const DOWN: &str = "\x1b[B";
const ENTER: &str = "\r";

/// Questions of a new home: a word that is on the screen then, and the answer. Words only: some agents move the cursor
/// instead of printing a space.
fn questions(agent: RealAgent) -> &'static [(&'static str, &'static [&'static str])] {
    match agent {
        RealAgent::Claude => &[
            ("trust", &[ENTER]),
            ("recommended", &[UP, ENTER]), // the key in the environment, which is the placeholder
            ("accept", &[DOWN, ENTER]),    // no permission prompts
        ],
        RealAgent::Codex | RealAgent::Gemini => &[],
    }
}

fn answer(terminal: &mut PtyRun, keys: &[&str]) {
    for key in keys {
        sleep(Duration::from_millis(500)); // the question is drawn before it is read
        terminal.type_in(key);
    }
}

/// What the terminal showed last, without most of its control characters.
fn tail(terminal: &PtyRun) -> String {
    let screen = terminal.screen();
    let parts = screen.split('\u{1b}').map(|part| {
        let text = part.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        text.chars().skip(1).collect::<String>()
    });
    let shown: String = parts.collect();
    let start = shown.char_indices().rev().nth(3000).map_or(0, |(at, _)| at);
    shown[start..].to_owned()
}

fn works(stage: &Stage<'_>) {
    stage.model.play([Turn::run("echo made > made.txt"), Turn::say("Done.")]);
    let call = stage.run(&["-t", "--name", "work"]).env("TERM", "xterm-256color");
    let mut terminal = PtyRun::start(&call.through(PtyRun::SESSION), 40, 120);
    terminal.wait_for("attested");
    for (word, keys) in questions(stage.agent) {
        terminal.wait_for(word);
        answer(&mut terminal, keys);
    }
    // What is typed before it is ready is lost.
    let asks = || !stage.model.conversation().is_empty();
    for _ in 0..6 {
        answer(&mut terminal, &["work", ENTER]);
        if until(Duration::from_secs(5), asks) {
            break;
        }
    }
    let played = until(Duration::from_secs(30), || stage.model.left() == 0);
    assert!(played, "{:#?}\n{}", stage.targets(), tail(&terminal));
    let made = || stage.patch("work").contains("+made\n");
    assert!(until(Duration::from_secs(20), made), "{}", stage.patch("work"));
    assert!(!terminal.screen().contains(&stage.key), "the key is on the screen");
    stage.assert_only_its_service_was_used();
    stage.stop("work");
    terminal.end();
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_claude_on_a_terminal() {
    with(RealAgent::Claude, Place::JailAsRoot, works);
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_codex_on_a_terminal() {
    with(RealAgent::Codex, Place::JailAsRoot, works);
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_gemini_on_a_terminal() {
    with(RealAgent::Gemini, Place::JailAsRoot, works);
}
