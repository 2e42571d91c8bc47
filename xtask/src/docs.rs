//! `cargo xtask docs`: writes `docs/command-line.md` anew. The test that compares the page with the
//! definition of the command line also writes it, so its content is defined in one place. Xtask itself does
//! not depend on the crates: it must build when they do not.

use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::line;
use crate::{host, schema};

const FILE: &str = "docs/command-line.md";
const TEST: &str = "cli::reference::the_page_of_the_command_line_is_current";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Write,
    Compare,
}

pub(crate) fn main() -> Result<ExitCode> {
    if let Some(fault) = run(Page::Write)? {
        bail!("{fault}");
    }
    println!("{FILE} is current");
    Ok(ExitCode::SUCCESS)
}

/// Whether the page lags, for `cargo xtask check`.
pub(crate) fn faults() -> Result<Vec<String>> {
    Ok(run(Page::Compare)?.into_iter().collect())
}

/// What the test found wrong.
fn run(page: Page) -> Result<Option<String>> {
    let mut cargo = host::cargo()?;
    cargo.args(["test", "--quiet", "-p", "belljar", "--bin", "belljar", "--", "--exact", TEST]);
    if page == Page::Write {
        cargo.env("BELLJAR_BLESS", "1");
    }
    let output = cargo.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{}`", line(&cargo)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        ensure!(schema::ran_a_test(&text), "belljar has no test {TEST}, so nothing was compared");
        return Ok(None);
    }
    let is_message = |line: &&str| {
        line.starts_with(FILE) || line.starts_with("stored:") || line.starts_with("wanted:")
    };
    let message: Vec<&str> = text.lines().filter(is_message).collect();
    if message.is_empty() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        print!("{text}");
        bail!("`{}` ended with {}", line(&cargo), output.status);
    }
    Ok(Some(message.join("\n    ")))
}
