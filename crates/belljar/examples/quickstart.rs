//! The first steps with the library: run a command on a project without changing it, then look at what it changed.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::time::Duration;

use belljar::{Error, Sandbox, spec::MountMode};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let sandbox = Sandbox::builder().workspace(".", MountMode::Overlay).start().await?;
    let command = sandbox.exec(["sh", "-c", "date > built.txt && ls"]);
    let output = command.timeout(Duration::from_secs(600)).output().await?;
    println!("{:?} {}", output.exit.code, output.stdout_text());
    for change in sandbox.diff().await?.changes() {
        println!("{:?} {}", change.what, change.path);
    }
    sandbox.discard().await
}
