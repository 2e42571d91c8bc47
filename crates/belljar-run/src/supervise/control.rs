//! The control socket and the clients connected to it.

use std::time::Instant;

use belljar_spec::RunId;

use super::SuperviseError;
use super::client::{ClientEvent, ClientId, Clients, Connection};
use super::control_socket::ControlSocket;
use super::event_source::{EventSource, PollSet};

#[derive(Debug)]
pub(super) struct Control {
    run: RunId,
    /// Closed when the run is over.
    socket: Option<ControlSocket>,
    pub(super) clients: Clients,
    /// The client whose disconnection ends the run.
    owner: Option<ClientId>,
}

impl Control {
    pub(super) fn new(
        run: RunId,
        socket: ControlSocket,
        clients: Clients,
        owner: Option<ClientId>,
    ) -> Self {
        Self { run, socket: Some(socket), clients, owner }
    }

    pub(super) fn is_owner(&self, client: ClientId) -> bool {
        self.owner == Some(client)
    }

    /// Clients that are connected stay so; no further one is accepted.
    pub(super) fn close_socket(&mut self) {
        self.socket = None;
    }

    fn accept_clients(&mut self) {
        while let Some(fd) = self.socket.as_mut().and_then(ControlSocket::accept) {
            // One too many, or a socket that is closed already: nothing was promised.
            match Connection::new(fd) {
                Ok(connection) => drop(self.clients.add(connection)),
                Err(error) => tracing::debug!(%error, "control connection refused"),
            }
        }
    }
}

impl EventSource for Control {
    type Parts<'p> = ();
    type Event = (ClientId, ClientEvent);

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        poll.fds().extend(self.socket.as_ref().and_then(ControlSocket::poll_fd));
        self.clients.watch(poll.fds());
    }

    fn deadline(&self) -> Option<Instant> {
        self.socket.as_ref().and_then(ControlSocket::closed_until)
    }

    fn take_turn(&mut self, _: Instant, (): ()) -> Result<Vec<Self::Event>, SuperviseError> {
        self.accept_clients();
        Ok(self.clients.read(self.run))
    }
}
