//! `belljar __egress`: the proxy of one run, in a process that is confined to the network.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar_sys::self_confine::confine_to_network;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::detach::detach_from_caller;

/// The argument that makes a process a proxy.
pub(super) const ARGUMENT: &str = "__egress";
/// The operator's own lists of authorities.
pub(super) const OWN_AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Settings of the host, the authorities that it trusts, and randomness: without a dynamic C library it is read
/// from the device, and a resolver without it panics.
const READABLE: &[&str] = &[
    "/dev/random",
    "/dev/urandom",
    "/etc",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];
/// Often links to elsewhere.
const MAY_BE_LINKS: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// `main` asks this before it parses arguments. `Some` is the code to exit with.
pub fn run_proxy_if_requested(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    if args.next()? != ARGUMENT || args.next().is_some() {
        return None;
    }
    Some(match serve() {
        Ok(()) => 0,
        Err(error) => {
            // The supervisor reads it, should this be the end before the beginning.
            let why = belljar_spec::text::error_chain(&*error);
            let _ = rustix::io::write(rustix::stdio::stderr(), why.as_bytes());
            125
        }
    })
}

fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let control = detach_from_caller()?;
    bound_log()?;
    confine_to_network(&readable())?;
    Ok(belljar_egress::serve(control)?)
}

/// The log on standard output, if there is one, is the only file that it can write: the kernel bounds it too.
fn bound_log() -> Result<(), Errno> {
    let most = Some(2 * crate::debug_log::MAX_BYTES);
    setrlimit(Resource::Fsize, Rlimit { current: most, maximum: most })
}

fn readable() -> Vec<PathBuf> {
    let own = OWN_AUTHORITIES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let links = MAY_BE_LINKS.iter().map(Path::new).filter_map(|path| path.canonicalize().ok());
    READABLE.iter().map(PathBuf::from).chain(links).chain(own).collect()
}
