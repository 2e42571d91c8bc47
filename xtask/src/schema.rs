//! `cargo xtask schema`: writes `docs/manifest.schema.json` anew. The test that compares the file
//! with the code also writes it, so its content is defined in one place. Xtask itself
//! does not depend on the crates: it must build when they do not.

use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::line;
use crate::host;

const FILE: &str = "docs/manifest.schema.json";

pub(crate) fn main() -> Result<ExitCode> {
    let mut cargo = host::cargo()?;
    cargo.args(["test", "--quiet", "-p", "belljar-spec", "--tests", "schema"]);
    cargo.env("BELLJAR_BLESS", "1").stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = cargo.output().with_context(|| format!("cannot start `{}`", line(&cargo)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        print!("{text}");
        bail!("`{}` ended with {}", line(&cargo), output.status);
    }
    ensure!(ran_a_test(&text), "belljar-spec has no test of the schema, so nothing was written");
    let path = host::workspace()?.join(FILE);
    ensure!(path.exists(), "the tests of the schema passed but wrote no {FILE}");
    println!("{FILE} is current");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn ran_a_test(output: &str) -> bool {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.into_iter().any(|numbers| !numbers.starts_with("0 passed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_test_writes_nothing() {
        assert!(!ran_a_test("test result: ok. 0 passed; 0 failed\n"));
        assert!(ran_a_test("test result: ok. 0 passed\ntest result: ok. 2 passed; 0 failed\n"));
        assert!(!ran_a_test(""));
    }
}
