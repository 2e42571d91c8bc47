//! Puts the remote backend in the jail's place in the registry of this process.

use std::net::SocketAddr;
use std::time::Duration;

use belljar_backend::{Backend, DestroyError, Replacement, SandboxId, Unavailable};
use belljar_spec::{BackendName, env};

use crate::{Purpose, Remote, ask_agent};

/// Where no test has set another.
const LEASE: Duration = Duration::from_secs(120);

/// Has the address of the agent: each test has one of its own.
const ADDRESS_FILE: &str = "agent-address";

pub fn take_the_jails_place() {
    belljar_backend::replace(Replacement { name: BackendName::Jail, find, destroy });
}

fn find(_: BackendName) -> Result<Box<dyn Backend>, Unavailable> {
    let agent = agent().map_err(|why| Unavailable::new(why, "start an agent"))?;
    let lease = std::env::var(env::TEST_LEASE_MS).ok().and_then(|lease| lease.parse().ok());
    Ok(Box::new(Remote::new(agent, lease.map_or(LEASE, Duration::from_millis))))
}

fn destroy(sandbox: &SandboxId) -> Result<(), DestroyError> {
    let agent = agent().map_err(|why| DestroyError(why.into()))?;
    let destroyed = ask_agent(agent, Purpose::Destroy { run: sandbox.run.clone() });
    destroyed.map_err(|error| DestroyError(Box::new(error)))
}

/// Beside the launcher's executable, since not every process of a run gets the caller's variables.
fn agent() -> Result<SocketAddr, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = exe.with_file_name(ADDRESS_FILE);
    let address = std::fs::read_to_string(&file);
    let address = address.map_err(|error| format!("{}: {error}", file.display()))?;
    address.trim().parse().map_err(|_| format!("{} has no address", file.display()))
}
