//! Compiles the system call filters when the program is built: a bad filter does not build, and a
//! start costs no compilation.

#[path = "build/filter_program.rs"]
mod filter_program;
#[path = "build/filter_source.rs"]
mod filter_source;

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use filter_source::Verdict;

const X86_64: u32 = 0xc000_003e;
const AARCH64: u32 = 0xc000_00b7;

fn main() {
    println!("cargo::rerun-if-changed=filters");
    println!("cargo::rerun-if-changed=build");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let out = env::var("OUT_DIR").unwrap_or_default();
    let source = fs::read_to_string("filters/command.filter").unwrap_or_default();
    let program = match compile(&source, &arch) {
        Ok(program) => program,
        Err(problem) => panic!("filters/command.filter: {problem}"),
    };
    let write = |name: &str, content: Vec<u8>| {
        if let Err(error) = fs::write(Path::new(&out).join(name), content) {
            panic!("cannot write {name}: {error}");
        }
    };
    write("command.bpf", program);
    write("call_names.rs", format!("&{:?}", call_names(&arch)).into_bytes());
}

/// Of every call of the processor, sorted by number.
fn call_names(arch: &str) -> Vec<(u32, &'static str)> {
    let mut names: Vec<(u32, &'static str)> = match arch {
        "aarch64" => syscalls::aarch64::Sysno::iter().map(|n| (n.id() as u32, n.name())).collect(),
        _ => syscalls::x86_64::Sysno::iter().map(|n| (n.id() as u32, n.name())).collect(),
    };
    names.sort_unstable();
    names
}

fn compile(source: &str, arch: &str) -> Result<Vec<u8>, String> {
    let number: fn(&str) -> Option<i32> = match arch {
        "x86_64" => |name| Some(name.parse::<syscalls::x86_64::Sysno>().ok()?.id()),
        "aarch64" => |name| Some(name.parse::<syscalls::aarch64::Sysno>().ok()?.id()),
        other => return Err(format!("no system call table for {other}")),
    };
    let (audit_arch, has_x32) = if arch == "x86_64" { (X86_64, true) } else { (AARCH64, false) };
    let mut verdicts: BTreeMap<u32, Verdict> = BTreeMap::new();
    for (name, verdict) in filter_source::parse(source, arch)? {
        let number = number(&name).ok_or_else(|| format!("{arch} has no call {name}"))?;
        verdicts.insert(number as u32, verdict);
    }
    filter_program::compile(&verdicts, audit_arch, has_x32)
}
