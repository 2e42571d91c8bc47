//! Holds the values of the run's secrets. The supervisor can replace a value while the proxy runs.

use std::sync::{Arc, PoisonError, RwLock};

use belljar_spec::egress::SecretValue;

type Values = Arc<RwLock<Vec<Arc<SecretValue>>>>;

/// Shared by all phases of a run; a phase that may not use secrets finds none.
#[derive(Debug)]
pub(crate) struct SecretStore {
    values: Values,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Granted,
    Withheld,
}

impl SecretStore {
    pub(crate) fn new(values: Vec<SecretValue>) -> Self {
        let values = values.into_iter().map(Arc::new).collect();
        Self { values: Arc::new(RwLock::new(values)), access: Access::Granted }
    }

    /// The same values, which this phase cannot use.
    pub(crate) fn withheld(&self) -> Self {
        Self { values: self.values.clone(), access: Access::Withheld }
    }

    /// The current value. A request that has it keeps it, also for masking its response.
    pub(crate) fn get(&self, env: &str) -> Option<Arc<SecretValue>> {
        if self.access == Access::Withheld {
            return None;
        }
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        values.iter().find(|value| value.env == env).cloned()
    }

    /// Replaces the value of a secret that exists; its placeholder inside stays the same. `false`: there is none of that
    /// name, and nothing was changed.
    pub(crate) fn replace(&self, mut new: SecretValue) -> bool {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        match values.iter_mut().find(|value| value.env == new.env) {
            Some(value) => {
                new.placeholder.clone_from(&value.placeholder);
                *value = Arc::new(new);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::secret;

    #[test]
    fn a_value_is_replaced_for_every_phase_and_a_request_keeps_its_own() {
        let run = SecretStore::new(vec![secret("KEY", "old")]);
        let setup = run.withheld();
        assert!(setup.get("KEY").is_none());
        let held = run.get("KEY").unwrap();
        assert!(setup.replace(secret("KEY", "new")));
        assert_eq!((held.value.as_str(), run.get("KEY").unwrap().value.as_str()), ("old", "new"));
        assert!(!run.replace(secret("OTHER", "x")) && run.get("OTHER").is_none());
    }
}
