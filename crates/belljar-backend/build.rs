//! Writes the lists of system calls that a container engine is given, from the same files as the jail's filters: for
//! containers that belljar starts, and for containers that belljar runs in.

#[allow(dead_code, reason = "the engine's list has no rules on arguments")]
#[path = "../belljar-linux/build/filter_source.rs"]
mod filter_source;

use std::path::Path;
use std::{env, fs};

use filter_source::Verdict;

const FILTERS: &str = "../belljar-linux/filters";
const JOIN_SESSION_KEYRING: u32 = 1;
/// Every address family below 48 but AF_VSOCK (40), as masks and values of the lower 32 bits: the kernel ignores the
/// upper ones, and engines compare all 64, so "not equal to 40" would let 40 with an upper bit pass.
const FAMILIES: [(u32, u32); 5] = [
    (0xffff_ffe0, 0),  // 0 to 31
    (0xffff_fff8, 32), // 32 to 39
    (0xffff_ffff, 41),
    (0xffff_fffe, 42), // 42 and 43
    (0xffff_fffc, 44), // 44 to 47
];

fn main() {
    println!("cargo::rerun-if-changed={FILTERS}");
    println!("cargo::rerun-if-changed=../belljar-linux/build/filter_source.rs");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let out = env::var("OUT_DIR").unwrap_or_default();
    let read = |name: &str| fs::read_to_string(Path::new(FILTERS).join(name)).unwrap_or_default();
    let write = |name: &str, profile: Result<String, String>| {
        let written = profile.and_then(|profile| {
            fs::write(Path::new(&out).join(name), profile).map_err(|error| error.to_string())
        });
        if let Err(problem) = written {
            panic!("{FILTERS}: {name}: {problem}");
        }
    };
    let [command, engine, container] =
        ["command.filter", "engine.filter", "container.filter"].map(read);
    write("engine.json", engine_profile(&command, &engine, &arch, Unlisted::Error));
    write(
        "engine_traced.json",
        engine_profile(&command, &engine, &arch, Unlisted::LeftToCommandFilter),
    );
    write("container.json", container_profile(&[&command, &engine, &container], &arch));
}

/// The names that these files let through, and the processor as engines call it.
fn allowed(sources: &[&str], arch: &str) -> Result<(Vec<String>, &'static str), String> {
    let mut names: Vec<String> = Vec::new();
    for source in sources {
        let verdicts = filter_source::parse(source, arch)?;
        names.extend(
            verdicts.into_iter().filter(|(_, v)| *v != Verdict::Deny).map(|(name, _)| name),
        );
    }
    names.sort();
    names.dedup();
    let scmp = if arch == "x86_64" { "SCMP_ARCH_X86_64" } else { "SCMP_ARCH_AARCH64" };
    Ok((names, scmp))
}

/// For a container in which belljar itself runs. A file for people, so it has lines.
fn container_profile(sources: &[&str], arch: &str) -> Result<String, String> {
    let (names, scmp) = allowed(sources, arch)?;
    // One of them has rules on its argument below.
    let names = names.iter().filter(|name| *name != "socket");
    let names: Vec<String> = names.map(|name| format!("        \"{name}\"")).collect();
    let narrower = |name: &str, condition: &str| {
        format!(
            "    {{\n      \"names\": [\"{name}\"],\n      \"action\": \"SCMP_ACT_ALLOW\",\n      \
             \"args\": [{{ \"index\": 0, {condition} }}]\n    }}"
        )
    };
    let joins = format!("\"value\": {JOIN_SESSION_KEYRING}, \"op\": \"SCMP_CMP_EQ\"");
    let families = FAMILIES.map(|(mask, family)| {
        format!("\"value\": {mask}, \"valueTwo\": {family}, \"op\": \"SCMP_CMP_MASKED_EQ\"")
    });
    let mut rules = vec![narrower("keyctl", &joins)];
    rules.extend(families.iter().map(|family| narrower("socket", family)));
    Ok(format!(
        "{{\n  \"defaultAction\": \"SCMP_ACT_ERRNO\",\n  \"defaultErrnoRet\": 38,\n  \
         \"architectures\": [\"{scmp}\"],\n  \"syscalls\": [\n    {{\n      \"names\": [\n{}\n      ],\n      \
         \"action\": \"SCMP_ACT_ALLOW\"\n    }},\n{}\n  ]\n}}\n",
        names.join(",\n"),
        rules.join(",\n"),
    ))
}

/// What an engine's list answers calls that are not on it.
#[derive(Clone, Copy)]
enum Unlisted {
    Error,
    /// SCMP_ACT_TRACE: of several filters' answers the kernel takes the strictest. An error of the engine's list would
    /// keep the command's filter from reporting the call; this leaves it to that filter. Where there is none, as in PID
    /// 1, which nothing can trace, the kernel answers ENOSYS.
    LeftToCommandFilter,
}

/// As container engines read it: names only. Rules on the arguments of a call are in the command's
/// filter, on top.
fn engine_profile(
    command: &str,
    wider: &str,
    arch: &str,
    unlisted: Unlisted,
) -> Result<String, String> {
    let (names, scmp) = allowed(&[command, wider], arch)?;
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let names = names.join(",");
    let listed = format!("{{\"names\":[{names}],\"action\":\"SCMP_ACT_ALLOW\"}}");
    Ok(match unlisted {
        // Old engines return EPERM for calls that are not listed, whatever is requested here.
        Unlisted::Error => format!(
            "{{\"defaultAction\":\"SCMP_ACT_ERRNO\",\"defaultErrnoRet\":38,\"architectures\":[\"{scmp}\"],\
             \"syscalls\":[{listed},\
             {{\"names\":[\"clone3\",\"openat2\"],\"action\":\"SCMP_ACT_ERRNO\",\"errnoRet\":38}}]}}",
        ),
        Unlisted::LeftToCommandFilter => format!(
            "{{\"defaultAction\":\"SCMP_ACT_TRACE\",\"architectures\":[\"{scmp}\"],\"syscalls\":[{listed}]}}"
        ),
    })
}
