//! What may not be missing. A test of it fails then, instead of leaving itself out.

use belljar::spec::env::MUST_WORK;

use crate::engines::{Engine, Engines};
use crate::host;

const JAIL: &str = "jail";

#[derive(Default)]
pub(crate) struct MustWork(Vec<String>);

impl MustWork {
    /// By whoever called: CI names all that it has to have.
    pub(crate) fn asked_for() -> Self {
        let mut asked = Self::default();
        for name in std::env::var(MUST_WORK).unwrap_or_default().split(',') {
            asked.add(name.trim());
        }
        asked
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|found| found == name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Also the jail, as root on Linux, and every engine that was found to work.
    pub(crate) fn add_what_runs(&mut self, engines: Option<&Engines>) {
        if cfg!(target_os = "linux") && host::is_root() {
            self.add(JAIL);
        }
        for engine in engines.into_iter().flat_map(Engines::running) {
            self.add(Engine::name(engine));
        }
    }

    fn add(&mut self, name: &str) {
        if !name.is_empty() && !self.has(name) {
            self.0.push(name.to_owned());
        }
    }

    pub(crate) fn environment(&self) -> Option<(String, String)> {
        (!self.0.is_empty()).then(|| (MUST_WORK.to_owned(), self.0.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_once() {
        let mut must_work = MustWork::default();
        assert_eq!(must_work.environment(), None);
        for name in ["jail", "", "docker", "jail"] {
            must_work.add(name);
        }
        assert!(must_work.has("docker") && !must_work.has("dock"));
        assert_eq!(must_work.environment().unwrap().1, "jail,docker");
    }
}
