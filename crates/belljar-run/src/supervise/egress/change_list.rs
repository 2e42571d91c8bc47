//! Changes what a live run may reach, at the operator's request.

use std::path::Path;
use std::time::Duration;

use belljar_record::{RecordError, Recorder};
use belljar_spec::EventKind;
use belljar_spec::network_list::{NetworkAccess, NetworkChange, NetworkList, StartingNetwork};
use belljar_spec::text::error_chain;
use belljar_spec::wire::Mux;
use belljar_spec::wire::control::ControlError;
use serde_json::json;

use super::proxy::NotApplied;
use super::{NetworkBridge, Proxy, record_event};
use crate::config::check_additions;

/// It only has to close what it has; on a machine under heavy load too.
const WITHIN: Duration = Duration::from_secs(5);

const NO_PROXY: &str = "this run was started without network access, so no proxy listens inside; start one with --allow-host HOST \
     (--keep for a sandbox that stays), and close it until it is needed with: belljar network RUN --set none";
const LOST: &str = "the run's proxy died, and with it all network access; start a new run";

/// What a run began with, and what it may reach now.
#[derive(Debug, Default)]
pub(crate) struct LiveList {
    pub(super) start: StartingNetwork,
    pub(super) list: NetworkList,
}

impl NetworkBridge {
    pub(crate) fn with_list(self, start: StartingNetwork, list: NetworkList) -> Self {
        Self { live: LiveList { start, list }, ..self }
    }

    pub(crate) fn access(&self) -> NetworkAccess {
        match (&self.proxy, self.is_lost) {
            (Some(_), _) => NetworkAccess::Proxy,
            (None, true) => NetworkAccess::Lost,
            (None, false) => NetworkAccess::None,
        }
    }

    /// Returns when the change is in force; the result is how many connections and requests it closed. A proxy that does
    /// not apply it is ended, and then nothing gets out at all. `system` is the directory of the administrator's ceiling.
    pub(crate) fn change_list(
        &mut self,
        change: &NetworkChange,
        system: &Path,
        mut mux: Option<&mut Mux>,
        recorder: &mut Recorder,
    ) -> Result<Result<u64, ControlError>, RecordError> {
        let after = match self.wanted(change, system) {
            Ok(after) => after,
            Err(why) => return Ok(Err(ControlError::NetworkUnchanged { why })),
        };
        let Some(proxy) = self.proxy.as_mut().filter(|_| after != self.live.list) else {
            return Ok(Ok(0));
        };
        recorder.event(
            EventKind::NetworkChanged,
            &json!({ "before": self.live.list, "after": after }),
        )?;
        recorder.barrier()?; // a decision is on disk before its effect
        match proxy.change_list(after.clone(), WITHIN) {
            Ok(closed) => {
                self.live.list = after;
                self.take_proxy_events(mux, recorder)?;
                Ok(Ok(closed))
            }
            Err(NotApplied(why)) => {
                for event in self.proxy.iter_mut().flat_map(Proxy::take_early) {
                    record_event(event, recorder)?;
                }
                self.lose(&why, mux.take(), recorder)?;
                Ok(Err(ControlError::NetworkLost { why }))
            }
        }
    }

    /// The list after the change, if that is allowed.
    fn wanted(&self, change: &NetworkChange, system: &Path) -> Result<NetworkList, String> {
        match self.access() {
            NetworkAccess::Proxy => {}
            NetworkAccess::None => return Err(NO_PROXY.to_owned()),
            NetworkAccess::Lost => return Err(LOST.to_owned()),
        }
        let LiveList { start, list } = &self.live;
        let after = list.changed(change, start).map_err(|error| error.to_string())?;
        let additions = after.additions_to(list, start);
        // To narrow is always allowed, also a run that began under a higher ceiling, or under none.
        if !additions.is_empty() {
            check_additions(system, &additions).map_err(|error| error_chain(&error))?;
        }
        Ok(after)
    }
}
