//! Arguments of `image`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar::image::BuildNetwork;
use belljar::spec::BackendName;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) what: ImageVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageVerb {
    /// Build an image from a Dockerfile, if any of its inputs has changed
    Build(Box<BuildArgs>),
    /// Print the Dockerfile for agents that belljar ships
    Dockerfile,
}

#[derive(Debug, Args)]
#[command(
    before_help = "Examples:\n  \
        belljar image build --agent\n  \
        belljar image build -t tools:1 .\n  \
        belljar image build -f ci.Dockerfile --build-arg V=2 --network none .",
    after_help = "Exit codes: 0 the image is built or up to date; 1 a step of the build failed; 125 the \
    build could not start."
)]
pub(crate) struct BuildArgs {
    /// The Dockerfile [default: Dockerfile, or Containerfile, in the context]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Build the Dockerfile that belljar ships
    #[arg(long, conflicts_with_all = ["file", "context"])]
    pub(crate) agent: bool,
    /// The image's name [default: belljar- and the name of the Dockerfile or the context]
    #[arg(short = 't', long = "tag", value_name = "NAME[:TAG]")]
    pub(crate) name: Option<String>,
    /// The engine: docker or podman [default: the first that answers]
    #[arg(long, value_name = "NAME", value_parser = engine)]
    pub(crate) backend: Option<BackendName>,
    /// Set an ARG of the Dockerfile; without a value, from the environment
    #[arg(long = "build-arg", value_name = "NAME[=VALUE]", value_parser = argument)]
    pub(crate) arguments: Vec<(String, String)>,
    /// The network that build steps can use
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    pub(crate) network: Network,
    /// Repeat every step
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Build even if nothing has changed
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only errors and the image's id
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The directory that the Dockerfile can copy from [default: the Dockerfile's if -f is given, else
    /// the current one]
    #[arg(value_name = "CONTEXT")]
    pub(crate) context: Option<PathBuf>,
}

impl BuildArgs {
    pub(crate) fn arguments(&self) -> BTreeMap<String, String> {
        self.arguments.iter().cloned().collect()
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Network {
    /// The engine's default network
    #[default]
    Default,
    /// No network
    None,
}

impl From<Network> for BuildNetwork {
    fn from(network: Network) -> Self {
        match network {
            Network::Default => Self::Default,
            Network::None => Self::None,
        }
    }
}

fn engine(text: &str) -> Result<BackendName, String> {
    BackendName::engines().find(|name| name.name() == text).ok_or_else(|| {
        let names: Vec<&str> = BackendName::engines().map(BackendName::name).collect();
        format!("expected {}", names.join(" or "))
    })
}

fn argument(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => {
            let value =
                std::env::var(text).map_err(|_| format!("the variable {text} is not set"))?;
            (text, value)
        }
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match !name.is_empty() && name.chars().all(plain) {
        true => Ok((name.to_owned(), value)),
        false => Err("a name consists of letters, digits and \"_\"".to_owned()),
    }
}
