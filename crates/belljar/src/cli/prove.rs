//! `belljar prove`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 nothing broke; 1 something did, or a case could not be carried \
    out; 125 the backend cannot be used here."
)]
pub(crate) struct ProveArgs {
    /// The backend to attack: auto, jail, docker, podman
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// The image that an engine starts from; the attacks bring their own program
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// The engine's runtime, such as runsc (gVisor)
    #[arg(long, value_name = "NAME")]
    pub(crate) oci_runtime: Option<String>,
    /// Only this case; can be given again
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// List the cases and attack nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
