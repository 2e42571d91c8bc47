//! Prepares the network access of a run before anything is mounted: published ports, the proxy, its certificate
//! authority, and placeholders for the secrets that only the proxy knows.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use belljar_egress::control::Setup;
use belljar_spec::egress::{EgressPolicy, SecretValue};
use belljar_spec::network_list::{NetworkList, StartingNetwork};
use belljar_spec::{OsText, Plan, RunSpec};
use rustix::io::Errno;

use super::LaunchError;
use super::run_dir::RunDir;
use super::select_backend::Prepared;
use crate::supervise::{AfterSetup, EgressError, NetworkBridge, Ports, Proxy};
use belljar_record::Secrets;

/// Dropping it leaves nothing.
pub(super) fn prepare(
    place: &RunDir,
    prepared: &mut Prepared<'_>,
    secrets: &mut [SecretValue],
) -> Result<NetworkBridge, LaunchError> {
    let Prepared { spec, plan, .. } = prepared;
    let ports = Ports::open(&spec.egress.publish)?;
    put_placeholders(spec, plan, secrets)?;
    if plan.listen.is_empty() {
        return Ok(NetworkBridge::new(None, ports));
    }
    let run = place.id.to_string();
    let (allow, egress) = (spec.network_allow.clone(), spec.egress.clone());
    let setup = spec.setup().map(|setup| setup.network.clone());
    let policy = EgressPolicy { run, allow, setup, spec: egress };
    let mut proxy = Proxy::start(Setup { policy, secrets: secrets.to_vec() })?;
    if spec.intercepts() {
        write_trust(place, &mut proxy)?; // it is mounted, so it has to be there first
    }
    let network = NetworkBridge::new(Some(proxy), ports)
        .with_list(StartingNetwork::of(spec), NetworkList::of(spec));
    Ok(match (spec.setup(), spec.has_network_access_after_setup()) {
        (None, _) => network,
        (Some(_), true) => network.with_setup(AfterSetup::OwnRules),
        (Some(_), false) => network.with_setup(AfterSetup::Nothing),
    })
}

/// Puts a placeholder that is unique to this run into each secret's variable.
fn put_placeholders(
    spec: &RunSpec,
    plan: &mut Plan,
    secrets: &mut [SecretValue],
) -> Result<(), LaunchError> {
    for wanted in &spec.egress.secrets {
        let secret = secrets.iter_mut().find(|secret| secret.env == wanted.env);
        let secret = secret.ok_or_else(|| LaunchError::NoValue { env: wanted.env.clone() })?;
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|_| EgressError::Start(std::io::Error::from(Errno::IO)))?;
        let random = u64::from_ne_bytes(random);
        secret.placeholder = format!("belljar-{}-{random:016x}", wanted.env.to_lowercase());
        let value = OsText::from(secret.placeholder.as_str());
        plan.command.env.insert(wanted.env.clone(), value);
    }
    for secret in secrets.iter() {
        let holds = |value: &OsText| shows(value.as_bytes(), secret.value.as_bytes());
        if let Some((name, _)) = plan.command.env.iter().find(|(_, value)| holds(value)) {
            let (secret, variable) = (secret.env.clone(), name.clone());
            return Err(LaunchError::SecretInside { secret, variable });
        }
    }
    Ok(())
}

/// A short value is part of many texts by chance.
fn shows(text: &[u8], value: &[u8]) -> bool {
    text == value || (value.len() >= 8 && memchr::memmem::find(text, value).is_some())
}

/// Readable for the run's user: it is public, and the run's directory is not.
fn write_trust(place: &RunDir, proxy: &mut Proxy) -> Result<(), LaunchError> {
    let nothing = || EgressError::Settings("it made no authority".to_owned());
    let trust = proxy.wait_until_ready()?.ok_or_else(nothing)?;
    let directory = place.directory.join("trust");
    let written = DirBuilder::new().mode(0o755).create(&directory).and_then(|()| {
        // Whatever the caller's umask is.
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
        belljar_egress::trust::write_bundle(&directory, &trust.ca_certificate)
    });
    Ok(written.map_err(EgressError::Trust)?)
}

/// What must not be recorded: besides the spec's own, values that never come inside.
pub(super) fn masks(own: &Secrets, secrets: &[SecretValue]) -> Secrets {
    own.and(secrets.iter().map(|secret| secret.value.as_bytes().to_vec()))
}
