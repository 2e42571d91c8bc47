//! Answers clients that ask what the run may reach, or change it.

use belljar_record::RecordError;
use belljar_spec::network_list::{NetworkChange, NetworkState};
use belljar_spec::wire::control::{ControlError, FromSupervisor};

use super::client::ClientId;
use super::supervisor::Supervisor;

impl Supervisor<'_> {
    /// The answer is sent when the change is in force.
    pub(super) fn network_requested(
        &mut self,
        client: ClientId,
        change: Option<NetworkChange>,
    ) -> Result<(), RecordError> {
        let state = self.run_state();
        let changed = match change {
            None => Ok(0),
            Some(_) if !state.allows_exec() => {
                Err(ControlError::NetworkUnchanged { why: format!("the run is {state}") })
            }
            Some(change) => self.sandboxes.main_mut().change_network(&change, self.recorder)?,
        };
        let answer = match changed {
            Ok(closed) => FromSupervisor::Network(Box::new(self.network_state(closed))),
            Err(error) => FromSupervisor::NetworkRefused(error),
        };
        self.control.clients.send(client, &answer);
        Ok(())
    }

    fn network_state(&self, closed: u64) -> NetworkState {
        let network = self.sandboxes.main().network();
        NetworkState {
            run: self.settings.run,
            access: network.access(),
            list: network.list().clone(),
            routes: network.routes().to_vec(),
            ports: self.sandboxes.iter().flat_map(|sandbox| sandbox.published()).collect(),
            closed,
        }
    }
}
