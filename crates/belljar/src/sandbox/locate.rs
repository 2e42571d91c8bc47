//! Finds the belljar executable.

use std::path::{Path, PathBuf};

use super::error::Error;

const NAME: &str = "belljar";

/// Finds the executable: `BELLJAR_EXE`; else next to this program, or one directory up from cargo's
/// examples and tests; else on `PATH`.
pub fn find_executable() -> Result<PathBuf, Error> {
    let named = std::env::var_os(belljar_spec::env::EXE).filter(|path| !path.is_empty());
    if let Some(path) = named {
        return Ok(path.into());
    }
    let own = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = candidates(own.as_deref(), std::env::split_paths(&path));
    places.iter().find(|place| is_program(place)).cloned().ok_or_else(|| Error::NoExecutable {
        looked: format!("{NAME} next to this program and on PATH"),
    })
}

fn candidates(own: Option<&Path>, path: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let beside = own.and_then(Path::parent);
    // target/debug/examples/x and target/debug/deps/x
    let above = beside
        .filter(|directory| directory.ends_with("examples") || directory.ends_with("deps"))
        .and_then(Path::parent);
    let near = [beside, above].into_iter().flatten().map(Path::to_owned);
    // A relative entry of PATH would let the working directory decide what is started.
    near.chain(path.filter(|entry| entry.is_absolute())).map(|place| place.join(NAME)).collect()
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_examples_and_tests_find_what_was_built_beside_them() {
        let found = |own: &str| {
            candidates(Some(Path::new(own)), ["/usr/bin".into(), "here".into()].into_iter())
        };
        let on_path = PathBuf::from("/usr/bin/belljar");
        let built = PathBuf::from("/t/debug/belljar");
        assert_eq!(
            found("/t/debug/examples/shell_tool"),
            ["/t/debug/examples/belljar".into(), built.clone(), on_path.clone()]
        );
        assert_eq!(found("/t/debug/app"), [built, on_path]);
    }
}
