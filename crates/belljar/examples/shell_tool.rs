//! An agent framework's shell tool: one kept sandbox, a line of JSON in for each command, one out.
//!
//! `{"command": "make test", "timeout_s": 60}` becomes
//! `{"stdout": "…", "stderr": "…", "exit": 0, "truncated": false}`.
//! The sandbox works on the current directory and ends with this program.

use std::io::Write;
use std::time::Duration;

use belljar::{Error, Sandbox};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Call {
    command: String,
    timeout_s: Option<u64>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = Sandbox::builder().name("shell-tool").start().await?;
    // Waiting here holds up nothing: the sandbox is served by the runtime's other threads.
    for line in std::io::stdin().lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(call) => run(&sandbox, call).await,
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(std::io::stdout(), "{reply}")?;
    }
    sandbox.stop().await?;
    Ok(())
}

async fn run(sandbox: &Sandbox, call: Call) -> Value {
    let timeout = Duration::from_secs(call.timeout_s.unwrap_or(120));
    let output = match sandbox.exec(["sh", "-c", &call.command]).timeout(timeout).output().await {
        Ok(output) => output,
        Err(Error::Deadline { output }) => *output, // what it had printed, and exit code 124
        Err(error) => return json!({ "error": error.to_string() }),
    };
    json!({
        "stdout": output.stdout_text(),
        "stderr": output.stderr_text(),
        "exit": output.exit.process_code(),
        "truncated": output.truncated,
    })
}
