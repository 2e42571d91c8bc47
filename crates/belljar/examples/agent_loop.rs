//! The loop of an agent, with a script in place of a model: propose a command, run it, feed the result back.
//!
//! After each step that worked there is a checkpoint. When a step fails, the loop goes back: it forks the last
//! checkpoint, so that nothing of the failed attempt is left, and tries the next proposal there. At the end the
//! changes are printed; with `--apply` they are written to the current directory.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::time::Duration;

use belljar::spec::MountMode;
use belljar::{ApplyOptions, Checkpoint, Error, Output, Sandbox};

const STEP_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_STEPS: usize = 20;

/// What a model would see: each command with its result.
type Transcript = Vec<(String, Output)>;

/// Stands for the model: for each task, what it proposes first, and after a failure.
const TASKS: [&[&str]; 3] = [
    &["mkdir src && echo 'answer() { echo 42; }' > src/lib.sh"],
    &["rm -rf src; test -f src/lib.sh", "echo '. src/lib.sh; answer' > main.sh"],
    &["sh main.sh | grep -qx 41", "sh main.sh | grep -qx 42 && echo 'it works' > RESULT"],
];

/// `None` when all is done, or the model has no further idea.
fn propose(transcript: &Transcript) -> Option<&'static str> {
    let solved = transcript.iter().filter(|(_, output)| output.success()).count();
    let failures = transcript.iter().rev().take_while(|(_, output)| !output.success()).count();
    TASKS.get(solved)?.get(failures).copied()
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let apply = std::env::args().any(|argument| argument == "--apply");
    // The tree stays as it is: all of this happens in an overlay.
    let settings = Sandbox::builder().no_config().workspace(".", MountMode::Overlay);
    let mut sandbox = settings.start().await?;
    let mut checkpoint = sandbox.checkpoint("the start").await?;
    let mut transcript = Transcript::new();
    while let Some(command) = propose(&transcript).filter(|_| transcript.len() < MAX_STEPS) {
        let output = step(&sandbox, command).await?;
        println!("$ {command}\n  exit code {}", output.exit.process_code());
        if output.success() {
            checkpoint = sandbox.checkpoint(command).await?;
        } else {
            sandbox = go_back(sandbox, &checkpoint).await?;
            // The fork's history starts anew, so its first state is a checkpoint of its own.
            checkpoint = sandbox.checkpoint("after going back").await?;
        }
        transcript.push((command.to_owned(), output));
    }
    for change in sandbox.diff().await?.changes() {
        println!("changed: {}", change.path);
    }
    if apply {
        let report = sandbox.apply(ApplyOptions::default()).await?;
        println!("applied {} changes", report.changes);
    }
    sandbox.discard().await
}

/// A command that fails or hangs is a result like any other; only a broken sandbox ends the loop.
async fn step(sandbox: &Sandbox, command: &str) -> Result<Output, Error> {
    match sandbox.exec(["sh", "-c", command]).timeout(STEP_TIMEOUT).output().await {
        Err(Error::Deadline { output }) => Ok(*output),
        result => result,
    }
}

async fn go_back(failed: Sandbox, checkpoint: &Checkpoint) -> Result<Sandbox, Error> {
    println!("  back to checkpoint {}", checkpoint.note.as_deref().unwrap_or("without a note"));
    let fork = failed.fork(checkpoint).await?;
    failed.discard().await?;
    Ok(fork)
}
