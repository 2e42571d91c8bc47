//! Random trees with random changes: each state is restored exactly.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::support::{
    Chance, State, Yard, also_as_user, assert_same, is_root, mark, node, opaque, state,
};

const NAMES: [&[u8]; 9] =
    [b"a", b"b", b"file", b"line\nbreak", b"\xff\xfe", b"-rf", b"...", b" ", b"\x1b]0;x\x07"];

/// Makes and changes at random.
struct Gardener<'a> {
    root: PathBuf,
    chance: &'a mut Chance,
    made: u64,
}

impl Gardener<'_> {
    fn paths(&self, wanted: char) -> Vec<PathBuf> {
        let mut found = vec![self.root.clone()];
        let mut at = 0;
        while let Some(path) = found.get(at).cloned() {
            at += 1;
            if path.symlink_metadata().unwrap().is_dir() {
                let below = fs::read_dir(path).unwrap();
                let mut below: Vec<_> = below.map(|entry| entry.unwrap().path()).collect();
                below.sort(); // the same with each run
                found.extend(below);
            }
        }
        found.retain(|path| {
            let meta = path.symlink_metadata().unwrap();
            match wanted {
                'd' => meta.is_dir(),
                'f' => meta.is_file(),
                _ => true,
            }
        });
        found
    }

    fn new_path(&mut self) -> PathBuf {
        let directories = self.paths('d');
        let directory = self.chance.pick(&directories).unwrap();
        let mut name = self.chance.pick(&NAMES).unwrap().to_vec();
        if self.chance.next(20) == 0 {
            name = vec![b'n'; 240];
        }
        self.made += 1;
        name.extend(self.made.to_string().bytes());
        directory.join(OsStr::from_bytes(&name))
    }

    fn write(&mut self, path: &Path) {
        let file = fs::File::options().write(true).create(true).truncate(true).open(path).unwrap();
        for _ in 0..self.chance.next(4) {
            let at = self.chance.next(200_000);
            let byte = self.chance.next(256) as u8;
            let bytes = vec![byte; self.chance.next(5000) as usize];
            file.write_all_at(&bytes, at).unwrap();
        }
        if self.chance.next(4) == 0 {
            file.set_len(self.chance.next(1 << 20)).unwrap(); // ends in a hole
        }
    }

    fn step(&mut self) {
        let path = self.new_path();
        let files = self.paths('f');
        let all = self.paths('*');
        let any = self.chance.pick(&all[1..]).cloned();
        match self.chance.next(16) {
            0..=2 => self.write(&path),
            3 => fs::create_dir(&path).unwrap(),
            4 => symlink(path.file_name().unwrap(), &path).unwrap(),
            5 => node(&path, FileType::Fifo),
            6 => node(&path, FileType::CharacterDevice),
            7 => node(&path, FileType::Socket),
            8 => {
                if let Some(file) = self.chance.pick(&files) {
                    fs::hard_link(file, &path).unwrap();
                }
            }
            9 => {
                if let Some(file) = self.chance.pick(&files).cloned() {
                    self.write(&file);
                }
            }
            10 => {
                if let Some(any) = any {
                    let _ = fs::rename(any, &path); // not into itself
                }
            }
            11 => {
                if let Some(any) = any {
                    match any.symlink_metadata().unwrap().is_dir() {
                        true => fs::remove_dir_all(any).unwrap(),
                        false => fs::remove_file(any).unwrap(),
                    }
                }
            }
            12 => {
                if let Some(file) = self.chance.pick(&files) {
                    let mode = self.chance.next(0o1000) as u32 | 0o600;
                    fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
                }
            }
            13 => {
                let directories = self.paths('d');
                let directory = self.chance.pick(&directories).unwrap();
                match self.chance.next(3) {
                    0 => mark(directory, opaque(), b"y"),
                    1 => mark(directory, "user.note", b"of a directory"),
                    _ => {
                        let mode = self.chance.next(0o100) as u32 | 0o1700;
                        fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
                    }
                }
            }
            14 => {
                if let Some(file) = self.chance.pick(&files) {
                    let value = vec![7; self.chance.next(300) as usize];
                    mark(file, "user.note", &value);
                }
            }
            _ => {
                if let Some(any) = any.filter(|_| is_root()) {
                    let owner = Some(1000 + self.chance.next(3) as u32);
                    std::os::unix::fs::lchown(any, owner, owner).unwrap();
                }
            }
        }
    }
}

/// As the snapshot is to count them.
fn changed(before: &State, after: &State) -> u64 {
    let marked =
        |about: &crate::support::About| about.attributes.iter().any(|(name, _)| name == opaque());
    let counts = |about: &crate::support::About| {
        about.kind != 'd' || about.is_empty_directory() || marked(about)
    };
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    paths
        .into_iter()
        .map(|path| match (before.get(path), after.get(path)) {
            (Some(was), Some(is)) if was.kind == is.kind => u64::from(!was.looks_like(is)),
            (was, is) => {
                let both = [was, is].into_iter().flatten().filter(|about| counts(about)).count();
                // A file that became another kind is one path.
                let files = [was, is].into_iter().flatten().all(|about| about.kind != 'd');
                if files { both.min(1) as u64 } else { both as u64 }
            }
        })
        .sum()
}

#[test]
fn every_state_comes_back() {
    let rounds = if is_root() { 25 } else { 15 };
    for seed in 0..rounds {
        let yard = Yard::new();
        let mut chance = Chance(seed);
        let mut gardener = Gardener { root: yard.tree(), chance: &mut chance, made: 0 };
        let mut states: Vec<State> = Vec::new();
        for number in 0..4 {
            for _ in 0..[60, 15, 0, 25][number] {
                gardener.step();
            }
            if seed % 3 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(10)); // stamps differ
            }
            let now = state(&yard.tree());
            let taken = yard.take(number);
            let mut nothing = State::new();
            nothing.insert(PathBuf::new(), now[Path::new("")].clone());
            let before = states.last().unwrap_or(&nothing);
            assert_eq!(taken.changed, changed(before, &now), "seed {seed}, snapshot {number}");
            let files = now.values().filter(|about| about.kind == 'f').count();
            assert_eq!((taken.files, taken.left_out), (files as u64, 0), "seed {seed}");
            states.push(now);
        }
        for (number, then) in states.iter().enumerate() {
            let what = format!("seed {seed}, snapshot {number}");
            assert_same(&state(&yard.snapshot(number)), then, &what);
            assert_same(&state(&yard.restore(number)), then, &format!("{what} restored"));
        }
        assert_same(&state(&yard.tree()), &states[3], "the tree itself");
    }
}

#[test]
fn every_state_comes_back_as_an_ordinary_user() {
    also_as_user("random::every_state_comes_back");
}
