//! Reads the test runner's report: what tests have left out, and which passed only when they were repeated.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::flaky::Flaky;
use super::left_out::LeftOut;
use crate::host;

/// Of every run of the tests so far.
#[derive(Default)]
pub(super) struct RunnerReport {
    pub(super) left_out: LeftOut,
    pub(super) flaky: Flaky,
}

impl RunnerReport {
    /// Before a run of the tests: what an earlier one wrote is not read.
    pub(super) fn forget_older() -> Result<()> {
        let file = file()?;
        if file.exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(())
    }

    /// After it.
    pub(super) fn read(&mut self) -> Result<()> {
        let file = file()?;
        match fs::read(&file) {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text);
                self.left_out.add(&text);
                self.flaky.add(&text);
            }
            Err(error) => self.left_out.set_unknown(format!("{}: {error}", file.display())),
        }
        Ok(())
    }
}

/// Nextest writes it below `target` of the workspace, wherever cargo's own directory is.
fn file() -> Result<PathBuf> {
    Ok(host::workspace()?.join(Path::new("target/nextest/default/junit.xml")))
}

/// The name of the test that a line of the report begins. Only as much of XML as is needed.
pub(super) fn test_name(line: &str) -> Option<String> {
    let (_, element) = line.split_once("<testcase ")?;
    let attribute = |name: &str| {
        let (_, rest) = element.split_once(&format!("{name}=\""))?;
        rest.split('"').next().map(plain)
    };
    let file = attribute("classname").unwrap_or_default();
    Some(format!("{file} {}", attribute("name").unwrap_or_default()))
}

pub(super) fn plain(escaped: &str) -> String {
    let text = escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&")
}
