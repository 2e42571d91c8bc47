//! Compiles the system call filters when the program is built: a bad filter does not build, and a
//! start costs no compilation.

#[path = "build/filter_source.rs"]
mod filter_source;

use std::path::Path;
use std::{env, fs};

use filter_source::Compiled;

fn main() {
    println!("cargo::rerun-if-changed=filters/command.filter");
    println!("cargo::rerun-if-changed=build/filter_source.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let out = env::var("OUT_DIR").unwrap_or_default();
    let source = fs::read_to_string("filters/command.filter").unwrap_or_default();
    let Compiled { allow, deny } = match filter_source::compile(&source, &arch) {
        Ok(compiled) => compiled,
        Err(problem) => panic!("filters/command.filter: {problem}"),
    };
    for (name, program) in [("command.allow.bpf", allow), ("command.deny.bpf", deny)] {
        if let Err(error) = fs::write(Path::new(&out).join(name), program) {
            panic!("cannot write {name}: {error}");
        }
    }
}
