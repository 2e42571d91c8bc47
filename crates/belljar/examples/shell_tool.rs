//! A shell tool for an agent framework: reads one JSON line per command, runs it in a kept sandbox, and
//! prints one JSON line.
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
    let timeout = Duration::from_secs(call.timeout_s.unwrap_or(120));
    let output = match sandbox.exec(["sh", "-c", &call.command]).timeout(timeout).output().await {
        Ok(output) => output,
        Err(Error::Deadline { output }) => *output, // the output so far, and exit code 124
        Err(error) => return json!({ "error": error.to_string() }),
    };
    json!({
        "stdout": output.stdout_text(),
        "stderr": output.stderr_text(),
        "exit": output.exit.process_code(),
        "truncated": output.truncated,
    })
}
