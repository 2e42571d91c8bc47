//! Arguments of `prove`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every case held; 1 an attack succeeded, or a case could not run; 125 the \
    backend is not available here."
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
