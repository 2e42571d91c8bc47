//! Describes a failed launch to the client of a supervisor: its kind, its causes, and the command that helps.

use belljar_spec::Hint;
use belljar_spec::wire::control::{LaunchRefusal, RefusalKind};

use super::LaunchError;
use crate::container;

impl LaunchError {
    pub fn refusal(&self) -> LaunchRefusal {
        if let Self::NoneLeft { tried, first } = self {
            let kind = first.as_ref().map_or(RefusalKind::Unavailable, |first| first.kind);
            let missing = first.as_ref().map(|first| first.missing.clone()).unwrap_or_default();
            let causes = tried.iter().map(ToString::to_string);
            let causes = std::iter::once(self.to_string()).chain(causes).collect();
            return LaunchRefusal { kind, causes, missing, fix: self.fix() };
        }
        let kind = match self.started_as() {
            Self::Unavailable { .. } | Self::Image { .. } => RefusalKind::Unavailable,
            Self::NotGuaranteed { .. } | Self::NotAsPlanned { .. } => RefusalKind::Refused,
            Self::Record { .. } | Self::Key(_) | Self::Log(_) | Self::EndNotRecorded { .. } => {
                RefusalKind::Io
            }
            _ => RefusalKind::Start,
        };
        let mut causes = vec![self.to_string()];
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            causes.push(error.to_string());
            cause = error.source();
        }
        if let Self::NotAsPlanned { differences } = self {
            causes.extend(differences.iter().cloned());
        }
        let missing = match self {
            Self::NotGuaranteed { missing, .. } => missing.clone(),
            _ => Vec::new(),
        };
        LaunchRefusal { kind, causes, missing, fix: self.fix() }
    }

    /// What to do next, where there is something.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::NotGuaranteed { backend, .. } if !backend.features().has_boundary() => {
                Some(Hint::WaiveAll.into())
            }
            Self::NotGuaranteed { missing, .. } => {
                let waivers =
                    missing.iter().map(|unmet| format!("--waive {}=REASON", unmet.clause));
                let waivers = waivers.collect::<Vec<_>>().join(" ");
                Some(Hint::Waive { waivers }.into())
            }
            Self::Unavailable { reason, .. } => Some(reason.fix.clone()),
            Self::Image { reason, .. } => Some(reason.fix.clone()),
            Self::NoneLeft { first, .. } => first.as_ref().and_then(|first| first.fix.clone()),
            Self::NoCommand => Some(Hint::GiveCommand.into()),
            Self::NotAsPlanned { .. } | Self::Start(_) => Some(Hint::CheckHost.into()),
            Self::Publish(error) => error.fix(),
            // What an engine refuses to its containers shows as a mount that fails.
            Self::Bind(error) if !error.is_of_the_run() && container::is_marked() => {
                Some(Hint::CheckHost.into())
            }
            _ => None,
        }
    }

    /// A failed cleanup does not change what kind of failure it was.
    fn started_as(&self) -> &Self {
        match self {
            Self::AndCleanup { start, .. } => start.started_as(),
            other => other,
        }
    }
}
