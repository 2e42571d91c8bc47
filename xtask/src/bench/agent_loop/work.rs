//! The work of the agent in an iteration: it adds a line to a number of files.
//!
//! Iterations take different files, ten iterations' worth of them in all; then it begins anew. They are in directories
//! that are spread over the tree and have a hundred files each, whatever the size of the tree: so two trees differ in
//! nothing but their size.

use crate::bench::workspace::tree::A_DIRECTORY_HAS;

const ITERATIONS_APART: usize = 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    files: usize,
    pub(super) changes: usize,
}

impl Work {
    /// `files` are whole directories.
    pub(super) fn new(files: usize, changes: usize) -> Self {
        Self { files, changes }
    }

    /// How many directories are ever written in.
    fn directories(self) -> usize {
        (ITERATIONS_APART * self.changes).min(self.files) / A_DIRECTORY_HAS
    }

    fn spacing(self) -> usize {
        self.files / A_DIRECTORY_HAS / self.directories()
    }

    /// For a shell in which `$n` is the iteration's number.
    pub(super) fn script(self) -> String {
        let (changes, directories) = (self.changes, self.directories());
        let (spacing, each) = (self.spacing(), A_DIRECTORY_HAS);
        let window = directories * each;
        format!(
            "set -e; i=0; while [ $i -lt {changes} ]; do \
             s=$(((n * {changes} + i) % {window})); d=$((s % {directories} * {spacing})); \
             echo \"iteration $n\" >> \
             d$((d / {each}))/e$d/file$((d * {each} + s / {directories})).txt; \
             i=$((i + 1)); done"
        )
    }

    /// Where it writes, relative to the tree.
    pub(super) fn written_in(self) -> Vec<String> {
        let numbers = (0..self.directories()).map(|number| number * self.spacing());
        numbers.map(|number| format!("d{}/e{number}", number / A_DIRECTORY_HAS)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::bench::workspace::tree::path_of;
    use crate::scratch::Scratch;

    fn changed(tree: &Path, work: Work, n: usize) -> Vec<usize> {
        let script = format!("n={n}; {}", work.script());
        let status = Command::new("sh").args(["-c", &script]).current_dir(tree).status().unwrap();
        assert!(status.success());
        let line = format!("iteration {n}\n");
        let has = |number: &usize| {
            fs::read_to_string(tree.join(path_of(*number))).unwrap().ends_with(&line)
        };
        (0..work.files).filter(has).collect()
    }

    #[test]
    fn each_iteration_changes_as_many_files_of_the_tree() {
        let scratch = Scratch::new("work-test").unwrap();
        let tree = scratch.path();
        for number in 0..3000 {
            let path = tree.join(path_of(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let work = Work::new(3000, 100);
        let (first, second) = (changed(tree, work, 1), changed(tree, work, 2));
        assert_eq!((first.len(), second.len()), (100, 100));
        assert!(first.iter().all(|number| !second.contains(number)));
        assert!(first.contains(&(27 * 100 + 10)), "{first:?}");
        assert_eq!(changed(tree, Work::new(3000, 1000), 3).len(), 1000);
        let written = work.written_in();
        assert_eq!((written.len(), written[9].as_str()), (10, "d0/e27"));
    }
}
