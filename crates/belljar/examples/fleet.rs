//! Runs the same assignment in several sandboxes at once, each with its own copy-on-write view of the project, and
//! compares the results.
//!
//! `fleet COUNT COMMAND…`: the command gets the number of its worker in `WORKER`. A worker that fails does not stop
//! the others. The changes of the best one, the fastest of those that succeeded, are printed as a patch.

use std::ffi::OsString;
use std::io::Write;
use std::time::{Duration, Instant};

use belljar::spec::MountMode;
use belljar::{Error, RunOutput, Sandbox};
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(600);

struct Finished {
    worker: usize,
    took: Duration,
    result: Result<RunOutput, Error>,
}

impl Finished {
    fn succeeded(&self) -> bool {
        self.result.as_ref().is_ok_and(|done| done.output.success())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let count = arguments.next().and_then(|count| count.to_str()?.parse::<usize>().ok());
    let command: Vec<OsString> = arguments.collect();
    let Some(count) = count.filter(|count| *count > 0 && !command.is_empty()) else {
        return Err("usage: fleet COUNT COMMAND...".into());
    };
    let mut workers = JoinSet::new();
    for worker in 1..=count {
        workers.spawn(run(worker, command.clone()));
    }
    let mut finished = workers.join_all().await;
    finished.sort_by_key(|one| one.worker);
    let mut out = std::io::stdout();
    for one in &finished {
        writeln!(out, "{}", line(one).await?)?;
    }
    let best = finished.iter().filter(|one| one.succeeded()).min_by_key(|one| one.took);
    let Some(Finished { worker, result: Ok(done), .. }) = best else {
        return Err("no worker succeeded".into());
    };
    writeln!(out, "best: worker {worker}")?;
    out.write_all(&done.record().patch().await?)?;
    // `done.record().apply(…)` would write it to the project.
    for one in finished.iter().filter_map(|one| one.result.as_ref().ok()) {
        one.record().discard().await?;
    }
    Ok(())
}

async fn run(worker: usize, command: Vec<OsString>) -> Finished {
    let begun = Instant::now();
    let result = Sandbox::builder()
        .no_config()
        .workspace(".", MountMode::Overlay)
        .env("WORKER", worker.to_string())
        .label("fleet", "example")
        .timeout(TIMEOUT)
        .run(command)
        .await;
    Finished { worker, took: begun.elapsed(), result }
}

async fn line(one: &Finished) -> Result<String, Error> {
    let Finished { worker, result, .. } = one;
    Ok(match result {
        Ok(done) => {
            let code = done.output.exit.process_code();
            let changed = done.record().diff().await?.changes().count();
            let first = done.output.stdout_text();
            let first = first.lines().next().unwrap_or_default().to_owned();
            format!("worker {worker}: exit code {code}, {changed} paths changed: {first}")
        }
        Err(error) => format!("worker {worker}: {error}"),
    })
}
