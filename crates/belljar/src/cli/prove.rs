//! Arguments of `prove`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Each case starts real runs in a temporary home, tries something inside, and tries the same \
    outside as a control. A case that could not be shown has the reason: the attack works and is not promised \
    against, there is nothing to attack on this machine, the control was refused too, or the case itself \
    failed. Exit codes: 0 nothing broke; 1 an attack succeeded, or a case could not run; 2 an unknown case or \
    backend; 125 the backend is not available here."
)]
pub(crate) struct ProveArgs {
    /// The backend to attack: auto, jail, docker, podman
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// The image for an engine; the attack program is added to it
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// The engine's runtime, such as runsc (gVisor)
    #[arg(long, value_name = "NAME")]
    pub(crate) oci_runtime: Option<String>,
    /// Only this case; repeatable
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// List the cases without running them
    #[arg(long)]
    pub(crate) list: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
