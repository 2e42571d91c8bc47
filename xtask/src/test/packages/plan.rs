//! Decides which packages are installed and which are only unpacked: one whose installation would remove a
//! package of this machine's user is never installed.

use anyhow::{Result, anyhow};

use super::apt::Simulation;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan<'a> {
    pub(crate) install: Vec<&'a str>,
    pub(crate) unpack_only: Vec<UnpackedPackage<'a>>,
}

/// A package that must not be installed here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnpackedPackage<'a> {
    pub(crate) package: &'a str,
    pub(crate) would_remove: Vec<String>,
    /// It and what it depends on that is not there, as `name=version`.
    pub(crate) archives: Vec<String>,
}

/// `simulate` returns what an installation would do, or why it is impossible.
pub(crate) fn plan<'a>(
    packages: &[&'a str],
    mut simulate: impl FnMut(&[&str]) -> Result<Simulation, String>,
) -> Result<Plan<'a>> {
    let mut removes_nothing =
        |packages: &[&str]| simulate(packages).is_ok_and(|found| found.removes.is_empty());
    if removes_nothing(packages) {
        return Ok(Plan { install: packages.to_vec(), unpack_only: Vec::new() });
    }
    let mut install = Vec::new();
    let mut others = Vec::new();
    for package in packages {
        install.push(*package);
        if !removes_nothing(&install) {
            others.extend(install.pop());
        }
    }
    let mut unpack_only = Vec::new();
    for package in others {
        let found = simulate(&[package])
            .map_err(|why| anyhow!("the package {package} cannot be installed: {why}"))?;
        unpack_only.push(UnpackedPackage {
            package,
            would_remove: found.removes,
            archives: found.installs,
        });
    }
    Ok(Plan { install, unpack_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bad` removes `users`; `gone` is in no archive; `x` and `y` exclude each other.
    fn simulate(packages: &[&str]) -> Result<Simulation, String> {
        if packages.contains(&"gone") {
            return Err("unable to locate package gone".to_owned());
        }
        if packages.contains(&"x") && packages.contains(&"y") {
            return Err("unmet dependencies".to_owned());
        }
        let removes = packages.iter().filter(|name| **name == "bad").map(|_| "users".to_owned());
        let installs = packages.iter().map(|name| format!("{name}=1")).collect();
        Ok(Simulation { installs, removes: removes.collect() })
    }

    #[test]
    fn all_at_once_where_nothing_is_removed() {
        let mut calls = 0;
        let found = plan(&["a", "b"], |packages| {
            calls += 1;
            simulate(packages)
        });
        assert_eq!(found.unwrap(), Plan { install: vec!["a", "b"], unpack_only: Vec::new() });
        assert_eq!(calls, 1);
    }

    #[test]
    fn one_that_would_remove_is_kept_apart() {
        let found = plan(&["a", "bad", "b"], simulate).unwrap();
        assert_eq!(found.install, ["a", "b"]);
        let bad = UnpackedPackage {
            package: "bad",
            would_remove: vec!["users".to_owned()],
            archives: vec!["bad=1".to_owned()],
        };
        assert_eq!(found.unpack_only, [bad]);
    }

    #[test]
    fn of_two_that_exclude_each_other_the_second_is_kept_apart() {
        let found = plan(&["x", "y"], simulate).unwrap();
        assert_eq!(found.install, ["x"]);
        assert_eq!(found.unpack_only[0].package, "y");
    }

    #[test]
    fn one_that_cannot_be_had_is_an_error() {
        let error = plan(&["a", "gone"], simulate).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    }
}
