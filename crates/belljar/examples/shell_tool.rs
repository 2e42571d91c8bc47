//! A shell tool for an agent framework: reads one JSON line per command, runs it in a kept sandbox, and
//! prints one JSON line.
//!
//! `{"command": "make test", "timeout_s": 60}` becomes
//! `{"stdout": "…", "stderr": "…", "exit": 0, "timed_out": false, "truncated": false}`.
//! The sandbox works on the current directory and ends with this program.

use std::io::Write;
use std::time::Duration;

use belljar::{Error, Sandbox};
use serde::Deserialize;
use serde_json::{Value, json};

/// What fits into a model's context: the head and the tail of a longer stream are kept.
const OUTPUT_LIMIT: usize = 30_000;
const DEFAULT_TIMEOUT_S: u64 = 120;
const MAX_TIMEOUT_S: u64 = 600;

#[derive(Deserialize)]
struct Call {
    command: String,
    timeout_s: Option<u64>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = Sandbox::builder().start().await?;
    // Blocking here is fine: the runtime's other threads serve the sandbox.
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
    let seconds = call.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S).min(MAX_TIMEOUT_S);
    let exec = sandbox
        .exec(["sh", "-c", &call.command])
        .timeout(Duration::from_secs(seconds))
        .limit_output(OUTPUT_LIMIT);
    let (output, timed_out) = match exec.output().await {
        Ok(output) => (output, false),
        // Everything that the command had started is dead; what it had printed is here.
        Err(Error::Deadline { output }) => (*output, true),
        Err(error) => return json!({ "error": error.to_string() }),
    };
    json!({
        "stdout": output.stdout_text(),
        "stderr": output.stderr_text(),
        "exit": output.exit.process_code(),
        "timed_out": timed_out,
        "truncated": output.truncated,
    })
}
