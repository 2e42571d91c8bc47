//! `belljar version`: prints what identifies this executable.

use std::env::consts::{ARCH, OS};

use belljar::spec::BUILD;
use belljar::spec::wire::control::{CONTROL_MAX, CONTROL_MIN};
use belljar::spec::wire::{PROTOCOL_MAX, PROTOCOL_MIN};
use serde::Serialize;

use crate::cli::VersionArgs;
use crate::report;

/// Set by whoever builds a release; a build from a checkout does not know it.
const COMMIT: Option<&str> = option_env!("BELLJAR_COMMIT");

const TARGET_ENV: &str = if cfg!(target_env = "musl") {
    "musl"
} else if cfg!(target_env = "gnu") {
    "gnu"
} else {
    "other"
};

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// Two programs that talk to each other must have the same one.
    build: &'static str,
    commit: Option<&'static str>,
    target: String,
    profile: &'static str,
    features: Vec<&'static str>,
    protocol: ProtocolVersions,
}

#[derive(Serialize)]
struct ProtocolVersions {
    /// Between the launcher and PID 1.
    channel: VersionRange,
    /// Between a client and the supervisor.
    control: VersionRange,
}

#[derive(Serialize)]
struct VersionRange {
    min: u32,
    max: u32,
}

pub(crate) fn run(args: &VersionArgs) -> i32 {
    let version = version();
    if args.json {
        return i32::from(report::json(&version).is_err());
    }
    report::out(&to_text(&version));
    0
}

fn version() -> Version {
    Version {
        version: env!("CARGO_PKG_VERSION"),
        build: BUILD,
        commit: COMMIT.filter(|commit| !commit.is_empty()),
        target: format!("{ARCH}-{OS}-{TARGET_ENV}"),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        features: if cfg!(feature = "jail") { vec!["jail"] } else { Vec::new() },
        protocol: ProtocolVersions {
            channel: VersionRange { min: PROTOCOL_MIN, max: PROTOCOL_MAX },
            control: VersionRange { min: CONTROL_MIN, max: CONTROL_MAX },
        },
    }
}

fn to_text(version: &Version) -> String {
    let Version { version, build, commit, target, profile, features, protocol } = version;
    let commit = commit.unwrap_or("unknown");
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let range = |range: &VersionRange| match (range.min, range.max) {
        (min, max) if min == max => min.to_string(),
        (min, max) => format!("{min} to {max}"),
    };
    let (channel, control) = (range(&protocol.channel), range(&protocol.control));
    format!(
        "belljar {version}\nbuild     {build}\ncommit    {commit}\ntarget    {target}, {profile}\n\
         features  {features}\nprotocol  channel {channel}, control socket {control}\n"
    )
}
