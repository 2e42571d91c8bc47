//! A cgroup subtree that belongs to the test user, as a service manager's delegation would make
//! one, so that the limits of a user with delegation can be tested. Made below our own cgroup (or
//! above it as little as the kernel's rules allow), so that a limit on us stays one on the tests.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::user::TestUser;

const NAME: &str = "belljar-test-delegated";
const V1_CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "freezer", "memory", "pids"];
const V2_CONTROLLERS: &str = "+cpu +memory +pids";

/// Removed by [`Delegated::remove`], or at the latest when dropped.
pub(crate) struct Delegated {
    directories: Vec<PathBuf>,
    procs: Vec<PathBuf>,
}

impl Delegated {
    /// Needs root.
    pub(crate) fn create(user: &TestUser) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup").context("cannot read own cgroup")?;
        let hierarchies = hierarchies(&mounts, &own);
        let mut made = Self { directories: Vec::new(), procs: Vec::new() };
        if hierarchies.v1.is_empty() {
            let (mount, own) = hierarchies.v2.context("no cgroup hierarchy is mounted")?;
            made.delegate_v2(&mount, &own, user)?;
        } else {
            for directory in hierarchies.v1 {
                made.delegate_v1(&directory, user)?;
            }
        }
        Ok(made)
    }

    /// The `cgroup.procs` files that a process's id is written into to start it in the subtree.
    pub(crate) fn environment(&self) -> (String, String) {
        let procs: Vec<String> = self.procs.iter().map(|path| path.display().to_string()).collect();
        ("BELLJAR_TEST_DELEGATED".into(), procs.join(","))
    }

    fn delegate_v1(&mut self, parent: &Path, user: &TestUser) -> Result<()> {
        let directory = parent.join(NAME);
        self.make(&directory)?;
        for path in [directory.clone(), directory.join("cgroup.procs"), directory.join("tasks")] {
            give(&path, user)?;
        }
        self.procs.push(directory.join("cgroup.procs"));
        Ok(())
    }

    /// Only a cgroup without processes may hand controllers down, so the subtree cannot be right
    /// below ours; the nearest ancestor that works is taken.
    fn delegate_v2(&mut self, mount: &Path, own: &Path, user: &TestUser) -> Result<()> {
        let candidates = own.ancestors().skip(1).take_while(|ancestor| ancestor.starts_with(mount));
        let parent = candidates
            .chain([mount])
            .find(|ancestor| {
                fs::write(ancestor.join("cgroup.subtree_control"), V2_CONTROLLERS).is_ok()
            })
            .context("no cgroup above ours hands down cpu, memory and pids")?;
        let directory = parent.join(NAME);
        self.make(&directory)?;
        fs::write(directory.join("cgroup.subtree_control"), V2_CONTROLLERS)
            .with_context(|| format!("cannot hand controllers down in {}", directory.display()))?;
        let leaf = directory.join("leaf");
        self.make(&leaf)?;
        for cgroup in [&directory, &leaf] {
            give(cgroup, user)?;
            for file in ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
                give(&cgroup.join(file), user)?;
            }
        }
        self.procs.push(leaf.join("cgroup.procs"));
        Ok(())
    }

    fn make(&mut self, directory: &Path) -> Result<()> {
        // One left by a test run that was killed is as good as a new one.
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the cgroup {}", directory.display()))?;
        self.directories.push(directory.to_path_buf());
        Ok(())
    }

    /// Removes it all; what still has a process in it after a moment is an error, since a test
    /// left that process behind.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.try_remove()
    }

    fn try_remove(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(3);
        while let Some(directory) = self.directories.last() {
            match remove_tree(directory) {
                Ok(()) => {
                    self.directories.pop();
                }
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(50)),
                Err(error) => bail!(
                    "cannot remove the cgroup {}: {error}; does a test leave processes behind?",
                    directory.display()
                ),
            }
        }
        Ok(())
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        if let Err(error) = self.try_remove() {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Cgroup directories go with rmdir, children first; their files cannot be unlinked.
pub(crate) fn remove_tree(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

fn give(path: &Path, user: &TestUser) -> Result<()> {
    chown(path, Some(user.uid), Some(user.gid))
        .with_context(|| format!("cannot give {} to {}", path.display(), user.name))
}

struct Hierarchies {
    /// Our own cgroup in each v1 hierarchy that has a controller we use.
    v1: Vec<PathBuf>,
    /// Mount point and our own cgroup.
    v2: Option<(PathBuf, PathBuf)>,
}

fn hierarchies(mounts: &str, own: &str) -> Hierarchies {
    let mut found = Hierarchies { v1: Vec::new(), v2: None };
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let ([_, _, _, root, point, ..], [kind, _, options, ..]) = (&left[..], &right[..]) else {
            continue;
        };
        let options: Vec<&str> = options.split(',').collect();
        let here = |controllers: &[&str]| {
            let own = own_path(own, controllers)?;
            let below = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own);
            Some(Path::new(point).join(below.trim_start_matches('/')))
        };
        if *kind == "cgroup2" {
            found.v2 = here(&[""]).map(|own| (PathBuf::from(point), own));
        } else if *kind == "cgroup" && options.iter().any(|name| V1_CONTROLLERS.contains(name)) {
            found.v1.extend(here(&options));
        }
    }
    found.v1.sort();
    found.v1.dedup();
    found
}

/// The path in `/proc/self/cgroup` of the hierarchy with one of these controllers (`""` is v2).
fn own_path<'a>(own: &'a str, controllers: &[&str]) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        names.split(',').any(|name| controllers.contains(&name)).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_directories_are_below_our_own_cgroup() {
        let mounts = "32 31 0:29 / /c/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                      33 31 0:30 / /c/memory rw - cgroup cgroup rw,memory\n\
                      34 31 0:31 / /c/cpuset rw - cgroup cgroup rw,cpuset\n\
                      35 31 0:32 / /c/unified rw - cgroup2 cgroup2 rw\n";
        let own = "3:cpu,cpuacct:/\n2:memory:/a/b\n1:cpuset:/\n0::/\n";
        let found = hierarchies(mounts, own);
        assert_eq!(found.v1, [PathBuf::from("/c/cpu"), PathBuf::from("/c/memory/a/b")]);
    }

    #[test]
    fn v2_names_the_mount_and_our_own_cgroup() {
        let found = hierarchies("30 1 0:26 / /c rw - cgroup2 cgroup2 rw\n", "0::/user/session\n");
        assert!(found.v1.is_empty());
        assert_eq!(found.v2, Some((PathBuf::from("/c"), PathBuf::from("/c/user/session"))));
    }
}
