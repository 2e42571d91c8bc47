//! Which kernel modules the guest loads, in which order. The kernel's package has no dependency
//! list (a script of the package makes it when it is installed), so it is read from the modules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// The disk, and what the jail mounts. What a kernel has built in is not there as a file.
const WANTED: [&str; 7] =
    ["virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "ext4", "overlay", "virtio_rng"];

pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) contents: Vec<u8>,
}

/// The wanted modules that exist and what they depend on, dependencies first.
pub(crate) fn in_load_order(modules: &Path) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    collect(modules, &mut files)?;
    let mut loaded = Vec::new();
    for name in WANTED {
        add(name, &files, &mut loaded)?;
    }
    Ok(loaded)
}

fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let cannot = || format!("cannot read {}", directory.display());
    for entry in fs::read_dir(directory).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let path = entry.path();
        if entry.file_type().with_context(cannot)?.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The kernel treats `-` and `_` in a module's name as the same.
fn module_name(path: &Path) -> Option<String> {
    let (name, rest) = path.file_name()?.to_str()?.split_once('.')?;
    matches!(rest, "ko" | "ko.xz" | "ko.zst").then(|| name.replace('-', "_"))
}

fn add(name: &str, files: &BTreeMap<String, PathBuf>, loaded: &mut Vec<Module>) -> Result<()> {
    let name = name.replace('-', "_");
    let Some(path) = files.get(&name) else {
        return Ok(());
    };
    if loaded.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let contents = read(path)?;
    for dependency in dependencies(&contents) {
        add(&dependency, files, loaded)?;
    }
    loaded.push(Module { name, contents });
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut unpack = Command::new(program);
    let output = unpack.arg("-dc").arg(path).output();
    let output = output.with_context(|| format!("cannot start `{}`", command::line(&unpack)))?;
    anyhow::ensure!(output.status.success(), "`{}` failed", command::line(&unpack));
    Ok(output.stdout)
}

/// The `depends=a,b` string in the module's information section.
fn dependencies(contents: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = contents.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = contents[start + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(value);
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_module() {
        assert_eq!(
            dependencies(b"ELF\0depends=virtio,virtio_ring\0x=y\0"),
            ["virtio", "virtio_ring"]
        );
        assert!(dependencies(b"ELF\0depends=\0").is_empty());
        assert!(dependencies(b"ELF").is_empty());
    }

    #[test]
    fn compressed_modules_count_and_other_files_do_not() {
        assert_eq!(module_name(Path::new("/m/crc32c-intel.ko.xz")).unwrap(), "crc32c_intel");
        assert!(module_name(Path::new("/m/modules.builtin")).is_none());
    }
}
