//! Runs the parts of a benchmark one after the other, prints each result, and writes all of them as JSON where
//! that was asked for. A part that fails does not stop the others; it is a failure of the whole.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::conditions::Conditions;
use super::outcome::Part;

pub(super) struct Measurements {
    title: String,
    json: Option<PathBuf>,
    conditions: Conditions,
    parts: Vec<Part>,
}

impl Measurements {
    pub(super) fn begin(title: &str, json: Option<PathBuf>) -> Self {
        let conditions = Conditions::look();
        print!("{title}: {}", conditions.text());
        Self { title: title.to_owned(), json, conditions, parts: Vec::new() }
    }

    pub(super) fn part(&mut self, name: &'static str, measure: impl FnOnce() -> Result<Part>) {
        eprintln!("measuring: {name}");
        let part = measure().unwrap_or_else(|error| Part::failed(name, &error));
        print!("{}", part.text());
        self.parts.push(part);
    }

    /// Those parts whose names are in `only`; all of them if it names none.
    pub(super) fn parts<M: Copy>(
        &mut self,
        parts: &[(&'static str, M)],
        only: &[String],
        mut measure: impl FnMut(M) -> Result<Part>,
    ) {
        for (name, one) in parts {
            if only.is_empty() || only.iter().any(|wanted| wanted == name) {
                self.part(name, || measure(*one));
            }
        }
    }

    pub(super) fn finish(self) -> Result<ExitCode> {
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&self.as_json())
                .context("cannot write the result as JSON")?;
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let failed = self.parts.iter().any(Part::is_failed);
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn as_json(&self) -> Value {
        let parts: Vec<Value> = self.parts.iter().map(Part::json).collect();
        json!({ "title": self.title, "conditions": self.conditions.json(), "parts": parts })
    }
}

/// The names of `parts`, which `--only` accepts.
pub(super) fn names<M>(parts: &[(&'static str, M)]) -> Vec<&'static str> {
    parts.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn only_the_named_parts_are_measured() {
        let measured = |only: &[String]| {
            let mut all = Measurements::begin("test", None);
            all.parts(&[("a", 1), ("b", 2)], only, |number| {
                Ok(Part::new("x", format!("{number}")))
            });
            all.parts.len()
        };
        assert_eq!(measured(&[]), 2);
        assert_eq!(measured(&["b".to_owned()]), 1);
    }

    #[test]
    fn a_part_that_fails_stops_no_other_and_fails_the_whole() {
        let mut parts = Measurements::begin("test", None);
        parts.part("broken", || bail!("no engine"));
        parts.part("sound", || Ok(Part::new("sound", "a part")));
        let json = parts.as_json();
        assert_eq!(json["parts"][0]["failure"], "no engine");
        assert_eq!(json["parts"][1]["part"], "sound");
        assert_eq!(parts.finish().unwrap(), ExitCode::FAILURE);
        let mut good = Measurements::begin("test", None);
        good.part("sound", || Ok(Part::new("sound", "a part")));
        assert_eq!(good.finish().unwrap(), ExitCode::SUCCESS);
    }
}
