//! Detects renames: first by equal content, then by how many lines are the same.
//!
//! Bounded in what is read and in what is compared: past that a rename is shown as a file that went and one that
//! came.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;

use super::change::{Change, ContentPlace, Facts, Kind, What};
use super::open::{OpenTree, read_small};
use super::unified::is_binary;

/// Of one file, and of all together, to find the same content.
const MAX_SIZE: u64 = 64 << 20;
const MAX_READ: u64 = 512 << 20;
/// Of one file, to find similar content.
const MAX_TEXT: u64 = 256 << 10;
const MAX_PAIRS: usize = 20_000;
/// Of a hundred: so much of the larger file must be in the other one.
const ALIKE: u64 = 60;

pub(super) fn find(tree: &OpenTree, changes: &mut Vec<Change>) {
    // What is held back stays by itself, so that the rest can be taken without it.
    let indices = |wanted: &dyn Fn(&Change) -> bool| -> Vec<usize> {
        let free = |change: &Change| change.withheld.is_none() && wanted(change);
        (0..changes.len()).filter(|&at| free(&changes[at])).collect()
    };
    let gone = indices(&|change| change.what == What::Deleted && has_content(&change.before));
    let came = indices(&|change| change.what == What::Created && has_content(&change.after));
    if gone.is_empty() || came.is_empty() {
        return;
    }
    let mut search = Search { tree, changes, gone, came, pairs: Vec::new(), budget: MAX_READ };
    search.never_left();
    search.same_content();
    search.similar_lines();
    let pairs = search.pairs;
    join(changes, pairs);
}

/// Empty files are all alike.
fn has_content(facts: &Option<Facts>) -> bool {
    facts.as_ref().is_some_and(|facts| match facts.kind {
        Kind::File => facts.size > 0,
        Kind::Link => true,
        Kind::Directory | Kind::Fifo | Kind::Socket | Kind::Device => false,
    })
}

/// Files of the same content.
#[derive(Default)]
struct Alike<'a> {
    all: VecDeque<usize>,
    by_name: HashMap<Option<&'a OsStr>, VecDeque<usize>>,
    taken: HashSet<usize>,
}

impl<'a> Alike<'a> {
    fn put(&mut self, at: usize, name: Option<&'a OsStr>) {
        self.all.push_back(at);
        self.by_name.entry(name).or_default().push_back(at);
    }

    /// One of that name, if there is any, or the first.
    fn take(&mut self, name: Option<&'a OsStr>) -> Option<usize> {
        let Self { all, by_name, taken } = self;
        let mut free = |list: &mut VecDeque<usize>| {
            while let Some(at) = list.pop_front() {
                if taken.insert(at) {
                    return Some(at);
                }
            }
            None
        };
        by_name.get_mut(&name).and_then(&mut free).or_else(|| free(all))
    }
}

struct Search<'a> {
    tree: &'a OpenTree,
    changes: &'a [Change],
    gone: Vec<usize>,
    came: Vec<usize>,
    /// Which one went, and which one came instead.
    pairs: Vec<(usize, usize)>,
    budget: u64,
}

impl Search<'_> {
    fn pair(&mut self, gone: usize, came: usize) {
        self.pairs.push((gone, came));
        self.gone.retain(|&at| at != gone);
        self.came.retain(|&at| at != came);
    }

    fn pair_all(&mut self, pairs: Vec<(usize, usize)>) {
        let (gone, came): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        let (gone, came) = (sorted(gone), sorted(came));
        self.gone.retain(|at| gone.binary_search(at).is_err());
        self.came.retain(|at| came.binary_search(at).is_err());
        self.pairs.extend(pairs);
    }

    /// A directory above was renamed: the layers say themselves where it was.
    fn never_left(&mut self) {
        let by_path: HashMap<_, _> =
            self.gone.iter().map(|&at| (&self.changes[at].path, at)).collect();
        let mut taken = std::collections::HashSet::new();
        let found = self.came.iter().filter_map(|&came| match &self.changes[came].place {
            Some(ContentPlace::InLower(path)) => {
                let gone = *by_path.get(path)?;
                taken.insert(gone).then_some((gone, came))
            }
            Some(ContentPlace::InUpper(_)) | None => None,
        });
        let found = found.collect();
        self.pair_all(found);
    }

    fn same_content(&mut self) {
        // Only what has a counterpart of the same size is worth reading.
        let mut sizes: HashMap<(Kind, u64), (Vec<usize>, Vec<usize>)> = HashMap::new();
        for &at in &self.gone {
            if let Some(key) = self.changes[at].before.as_ref().and_then(size) {
                sizes.entry(key).or_default().0.push(at);
            }
        }
        for &at in &self.came {
            if let Some(key) = self.changes[at].after.as_ref().and_then(size) {
                sizes.entry(key).or_default().1.push(at);
            }
        }
        let mut found = Vec::new();
        let changes = self.changes; // not a part of what is borrowed to hash
        let mut groups: Vec<_> = sizes
            .into_iter()
            .filter(|(_, (gone, came))| !gone.is_empty() && !came.is_empty())
            .collect();
        groups.sort_unstable_by_key(|((_, size), (gone, _))| (*size, gone.first().copied()));
        for (_, (gone, came)) in groups {
            let mut by_hash: HashMap<[u8; 32], Alike<'_>> = HashMap::new();
            for at in gone {
                if let Some(hash) = self.hash_before(at) {
                    let name = changes[at].path.as_path().file_name();
                    by_hash.entry(hash).or_default().put(at, name);
                }
            }
            for at in came {
                let Some(hash) = self.hash_after(at) else { continue };
                let name = changes[at].path.as_path().file_name();
                if let Some(gone) = by_hash.get_mut(&hash).and_then(|same| same.take(name)) {
                    found.push((gone, at));
                }
            }
        }
        self.pair_all(found);
    }

    fn hash_before(&mut self, at: usize) -> Option<[u8; 32]> {
        let (tree, change) = (self.tree, &self.changes[at]);
        self.hash(change.before.as_ref()?, || tree.open_before(&change.path).ok())
    }

    fn hash_after(&mut self, at: usize) -> Option<[u8; 32]> {
        let (tree, change) = (self.tree, &self.changes[at]);
        self.hash(change.after.as_ref()?, || tree.open_after(change).ok())
    }

    /// Nothing where too much was read already.
    fn hash(&mut self, facts: &Facts, open: impl FnOnce() -> Option<File>) -> Option<[u8; 32]> {
        if let Some(target) = &facts.target {
            return Some(*blake3::hash(target.as_bytes()).as_bytes());
        }
        self.budget = self.budget.checked_sub(facts.size)?;
        content_hash(open()?)
    }

    fn similar_lines(&mut self) {
        if self.gone.len().saturating_mul(self.came.len()) > MAX_PAIRS {
            return;
        }
        let tree = self.tree;
        let old: Vec<_> = self
            .gone
            .iter()
            .filter_map(|&at| {
                let change = &self.changes[at];
                let is_small = change.before.as_ref().is_some_and(is_small_file);
                let file = is_small.then(|| tree.open_before(&change.path).ok())??;
                Some((at, Lines::of(file)?))
            })
            .collect();
        if old.is_empty() {
            return;
        }
        let mut scored = Vec::new();
        for &came in &self.came {
            let change = &self.changes[came];
            let is_small = change.after.as_ref().is_some_and(is_small_file);
            let file = if is_small { tree.open_after(change).ok() } else { None };
            let Some(lines) = file.and_then(Lines::of) else { continue };
            for (gone, before) in &old {
                let score = before.alike(&lines);
                if score >= ALIKE {
                    let same_name = self.changes[*gone].path.as_path().file_name()
                        == change.path.as_path().file_name();
                    scored.push((score, same_name, *gone, came));
                }
            }
        }
        scored.sort_unstable_by_key(|&(score, same_name, gone, came)| {
            (std::cmp::Reverse((score, same_name)), gone, came)
        });
        for (_, _, gone, came) in scored {
            if self.gone.contains(&gone) && self.came.contains(&came) {
                self.pair(gone, came);
            }
        }
    }
}

fn sorted(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_unstable();
    indices
}

fn size(facts: &Facts) -> Option<(Kind, u64)> {
    match facts.kind {
        Kind::File => (facts.size <= MAX_SIZE).then_some((Kind::File, facts.size)),
        Kind::Link => Some((Kind::Link, facts.target.as_ref()?.as_bytes().len() as u64)),
        Kind::Directory | Kind::Fifo | Kind::Socket | Kind::Device => None,
    }
}

fn is_small_file(facts: &Facts) -> bool {
    facts.kind == Kind::File && facts.size <= MAX_TEXT
}

/// Lines of a file, by hash, with how many bytes they are.
struct Lines {
    hashes: Vec<(u64, u64)>,
    bytes: u64,
}

impl Lines {
    fn of(mut file: File) -> Option<Self> {
        let text = read_small(&mut file, MAX_TEXT).ok()??;
        if text.is_empty() || is_binary(&text) {
            return None;
        }
        let hash = |line: &[u8]| {
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            (hasher.finish(), line.len() as u64)
        };
        let mut hashes: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').map(hash).collect();
        hashes.sort_unstable();
        Some(Self { hashes, bytes: text.len() as u64 })
    }

    /// Of a hundred.
    fn alike(&self, other: &Self) -> u64 {
        let larger = self.bytes.max(other.bytes);
        if self.bytes.min(other.bytes) * 100 < larger * ALIKE {
            return 0;
        }
        let (mut one, mut two) = (self.hashes.iter().peekable(), other.hashes.iter().peekable());
        let mut shared = 0;
        while let (Some(left), Some(right)) = (one.peek(), two.peek()) {
            match left.cmp(right) {
                std::cmp::Ordering::Less => drop(one.next()),
                std::cmp::Ordering::Greater => drop(two.next()),
                std::cmp::Ordering::Equal => {
                    shared += left.1;
                    one.next();
                    two.next();
                }
            }
        }
        shared * 100 / larger
    }
}

/// The two entries of each pair become one.
fn join(changes: &mut Vec<Change>, pairs: Vec<(usize, usize)>) {
    let mut goes = vec![false; changes.len()];
    for (gone, came) in pairs {
        let (from, before) = (changes[gone].path.clone(), changes[gone].before.clone());
        let later = changes[gone].autorun.clone();
        goes[gone] = true;
        let change = &mut changes[came];
        change.what = What::Renamed { from };
        change.before = before;
        change.autorun = change.autorun.take().or(later);
    }
    let mut goes = goes.into_iter();
    changes.retain(|_| !goes.next().unwrap_or(false));
}

/// Content up to [`MAX_SIZE`], whatever the inode said.
fn content_hash(file: File) -> Option<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut limited = file.take(MAX_SIZE + 1);
    std::io::copy(&mut limited, &mut hasher).ok()?;
    (limited.limit() > 0).then(|| *hasher.finalize().as_bytes())
}
