//! Arguments of `image`: what brings images into Belljar's own store, and `build`, which uses an engine.

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
    /// Load images from an archive (docker save, podman save) or an OCI layout
    Load(LoadArgs),
    /// Pull an image from its registry
    Pull(PullArgs),
    /// Take an image over from docker or podman
    Import(ImportArgs),
    /// List the images of Belljar's own store
    #[command(visible_alias = "ls")]
    List(ImageListArgs),
    /// Show what is known of an image
    Inspect(InspectArgs),
    /// Write an image as an archive, for belljar, docker or podman to load
    #[command(visible_alias = "save")]
    Export(ExportArgs),
    /// Remove images
    Rm(ImageRmArgs),
    /// Remove images that have no name, and content that no image needs
    Prune(ImagePruneArgs),
    /// Build an image with an engine, if any of its inputs has changed
    Build(Box<BuildArgs>),
    /// Print the Dockerfile for agents that belljar ships
    Dockerfile,
}

#[derive(Debug, Args)]
#[command(before_help = "Examples:\n  \
        docker save tools:1 | belljar image load -\n  \
        belljar image load layout/")]
pub(crate) struct LoadArgs {
    /// The name for an image that has none in the archive
    #[arg(short = 't', long = "tag", value_name = "NAME[:TAG]")]
    pub(crate) name: Option<String>,
    /// Print one JSON object for each image, in a list
    #[arg(long)]
    pub(crate) json: bool,
    /// An archive, a directory with an OCI layout, or - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The image
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
}

#[derive(Debug, Args)]
#[command(before_help = "Example:\n  belljar image import docker:tools:1")]
pub(crate) struct ImportArgs {
    /// Print one JSON object for each image, in a list
    #[arg(long)]
    pub(crate) json: bool,
    /// The engine and the image there
    #[arg(value_name = "ENGINE:IMAGE")]
    pub(crate) source: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImageListArgs {
    /// Print a JSON list
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only digests
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The image, by name or digest
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The new file; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The image, by name or digest
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// The images, by name or digest
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImagePruneArgs {
    /// Remove all images that no run uses
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
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
