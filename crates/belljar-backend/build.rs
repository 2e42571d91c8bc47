//! Writes the list of system calls that a container engine is given, from the same files as the jail's filters.

#[allow(dead_code, reason = "the engine's list has no rules on arguments")]
#[path = "../belljar-linux/build/filter_source.rs"]
mod filter_source;

use std::path::Path;
use std::{env, fs};

use filter_source::Verdict;

const FILTERS: &str = "../belljar-linux/filters";

fn main() {
    println!("cargo::rerun-if-changed={FILTERS}");
    println!("cargo::rerun-if-changed=../belljar-linux/build/filter_source.rs");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let out = env::var("OUT_DIR").unwrap_or_default();
    let read = |name: &str| fs::read_to_string(Path::new(FILTERS).join(name)).unwrap_or_default();
    let profile = match engine_profile(&read("command.filter"), &read("engine.filter"), &arch) {
        Ok(profile) => profile,
        Err(problem) => panic!("{FILTERS}: {problem}"),
    };
    if let Err(error) = fs::write(Path::new(&out).join("engine.json"), profile) {
        panic!("cannot write the engine's list of system calls: {error}");
    }
}

/// As container engines read it: names only. Rules on the arguments of a call are in the command's
/// filter, on top.
fn engine_profile(command: &str, wider: &str, arch: &str) -> Result<String, String> {
    let mut names: Vec<String> = Vec::new();
    for source in [command, wider] {
        let verdicts = filter_source::parse(source, arch)?;
        names.extend(
            verdicts.into_iter().filter(|(_, v)| *v != Verdict::Deny).map(|(name, _)| name),
        );
    }
    names.sort();
    names.dedup();
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let scmp = if arch == "x86_64" { "SCMP_ARCH_X86_64" } else { "SCMP_ARCH_AARCH64" };
    // Old engines return EPERM for calls that are not listed, whatever is requested here.
    Ok(format!(
        "{{\"defaultAction\":\"SCMP_ACT_ERRNO\",\"defaultErrnoRet\":38,\"architectures\":[\"{scmp}\"],\
         \"syscalls\":[{{\"names\":[{}],\"action\":\"SCMP_ACT_ALLOW\"}},\
         {{\"names\":[\"clone3\",\"openat2\"],\"action\":\"SCMP_ACT_ERRNO\",\"errnoRet\":38}}]}}",
        names.join(",")
    ))
}
