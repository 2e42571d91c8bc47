//! Compares the run's tree with the real one, directory by directory.
//!
//! It goes where the layer with the changes goes, and not through the rest of the real tree. One directory is open
//! at a time, so neither depth nor number costs descriptors.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use belljar_spec::{Backing, OsText};
use belljar_tree::{Dir, Metadata};
use rustix::io::Errno;

use super::bounds::{Listing, MAX_CHANGES, OutOfReach, Room};
use super::change::{Change, Changes, ContentPlace, Facts, HowFar, Kind, What, Withheld};
use super::entry_pair::{At, Touched, born, change, difference, kind, touched};
use super::fingerprint::changed;
use super::open::{OpenTree, ReviewError};
use super::overlay_view::{Entries, Node, Opened, OverlayEntry, Whole, each, is_whiteout};
use super::{renames, withheld};

/// How often the path of a change is held, and that of a directory that is yet to be looked at.
const LISTED: usize = 2;
const WAITING: usize = 2;

impl OpenTree {
    /// Every difference between the real tree, as it is now, and the run's.
    pub fn changes(&self) -> Result<Changes, ReviewError> {
        self.changes_up_to(MAX_CHANGES)
    }

    pub(super) fn changes_up_to(&self, most: usize) -> Result<Changes, ReviewError> {
        self.changes_within(most, Room::new())
    }

    pub(super) fn changes_within(&self, most: usize, room: Room) -> Result<Changes, ReviewError> {
        let mut walk = ChangeWalk::new(self, most, room)?;
        walk.all()?;
        let ChangeWalk { mut changes, cut, kept, .. } = walk;
        changes.sort_unstable_by(|one, other| one.path.as_path().cmp(other.path.as_path()));
        withheld::mark(self, &mut changes, &kept);
        renames::find(self, &mut changes);
        Ok(Changes { changes, cut })
    }
}

/// A directory that is yet to be looked at, on one side or both.
struct Pair {
    path: PathBuf,
    depth: usize,
    /// Whether the real tree has a directory there.
    before: bool,
    after: Option<Node>,
    /// A copy only: whether this directory was changed since the copy was made.
    touched: Touched,
    /// A copy only: whether it, or one above it, may be another one than the one that was copied.
    moved: Touched,
}

struct ChangeWalk<'a> {
    tree: &'a OpenTree,
    most: usize,
    /// For the paths of what was found and of what is yet to be looked at.
    room: Room,
    pending: Vec<Pair>,
    changes: Vec<Change>,
    /// Where those of them are that are yet to be looked into.
    directories: HashMap<PathBuf, usize>,
    cut: bool,
    /// Hidden names that the run removed with the directory they are in. They stay.
    kept: Vec<PathBuf>,
}

impl<'a> ChangeWalk<'a> {
    fn new(tree: &'a OpenTree, most: usize, room: Room) -> Result<Self, ReviewError> {
        let stat = tree.upper().stat("");
        let stat = stat.map_err(|error| tree.failed(&OsText::default(), error.errno()))?;
        let root = Pair {
            path: PathBuf::new(),
            depth: 0,
            before: true,
            after: Some(Node::root(tree.note.backing)),
            touched: touched(tree.note.backing, &stat),
            moved: Touched::No, // a process inside cannot rename what is mounted
        };
        let pending = vec![root];
        let (changes, directories, kept) = (Vec::new(), HashMap::new(), Vec::new());
        Ok(Self { tree, most, room, pending, changes, directories, cut: false, kept })
    }

    fn all(&mut self) -> Result<(), ReviewError> {
        while let Some(pair) = self.pending.pop() {
            self.room.give_back(&pair.path, WAITING);
            match self.directory(&pair) {
                Ok(()) => {}
                // Its mode forbids it, to an ordinary user. What is in it stays unknown, and so does not leave.
                Err(Errno::ACCESS | Errno::PERM) if pair.depth > 0 => self.unreadable(&pair),
                Err(errno) => return Err(self.tree.failed(&OsText::from(pair.path), errno)),
            }
            if self.changes.len() > self.most {
                self.changes.truncate(self.most);
                self.cut = true;
                return Ok(());
            }
        }
        Ok(())
    }

    fn directory(&mut self, pair: &Pair) -> Result<(), Errno> {
        let tree = self.tree;
        let before = match pair.before {
            true => tree.lower().open_dir_if_exists(&pair.path)?,
            false => None,
        };
        let Some(node) = &pair.after else {
            return match before {
                Some(before) => self.removed(pair, &before),
                None => Ok(()),
            };
        };
        let upper = match node.in_upper {
            true => tree.upper().open_dir_if_exists(&pair.path)?,
            false => None,
        };
        let in_place = before.is_some() && node.lower.as_deref() == Some(&pair.path);
        let lower = match &node.lower {
            Some(lower) if !in_place => tree.lower().open_dir_if_exists(lower)?,
            _ => None,
        };
        let opened =
            Opened { tree, path: &pair.path, node, upper: upper.as_ref(), lower: lower.as_ref() };
        let (entries, whole) = match in_place {
            true => opened.changed(Listing::of(&pair.path))?,
            false => opened.all(Listing::of(&pair.path))?,
        };
        self.cut |= whole == Whole::No;
        self.entries(pair, &entries, &opened, before.as_ref())?;
        match before {
            // What was not listed is not missing.
            Some(before) if !in_place && whole == Whole::Yes => {
                self.missing(pair, &entries, &before)
            }
            _ => Ok(()),
        }
    }

    fn entries(
        &mut self,
        pair: &Pair,
        entries: &Entries,
        opened: &Opened<'_>,
        before: Option<&Dir>,
    ) -> Result<(), Errno> {
        for (name, entry) in entries {
            if self.changes.len() > self.most {
                return Ok(());
            }
            let stat = match before {
                None => None,
                Some(before) => before.stat_if_exists(name)?.filter(|stat| !is_whiteout(stat)),
            };
            let was = match (before, &stat) {
                (Some(directory), Some(stat)) => Some(At { directory, name, stat }),
                _ => None,
            };
            let is = entry.as_ref().and_then(|entry| {
                let directory = match entry.place {
                    ContentPlace::InUpper(_) => opened.upper?,
                    ContentPlace::InLower(_) => opened.lower?,
                };
                Some((At { directory, name, stat: &entry.stat }, entry))
            });
            self.compare(pair, name, was, is);
        }
        Ok(())
    }

    /// What the real tree has and the run's has not.
    fn missing(&mut self, pair: &Pair, entries: &Entries, before: &Dir) -> Result<(), Errno> {
        let mut gone = Vec::new();
        let whole = each(before, Listing::of(&pair.path), |name, stat| {
            if !entries.contains_key(name) && !is_whiteout(&stat) {
                gone.push((name.to_owned(), stat));
            }
        })?;
        self.cut |= whole == Whole::No;
        for (name, stat) in gone {
            if self.changes.len() > self.most {
                return Ok(());
            }
            if self.is_of_others(pair, before, &name, &stat) {
                continue;
            }
            self.compare(
                pair,
                &name,
                Some(At { directory: before, name: &name, stat: &stat }),
                None,
            );
        }
        Ok(())
    }

    fn removed(&mut self, pair: &Pair, before: &Dir) -> Result<(), Errno> {
        self.missing(pair, &Entries::new(), before)
    }

    /// Whether another process put it into the real tree after the copy was made, so that the run never had it.
    fn is_of_others(&self, pair: &Pair, at: &Dir, name: &OsStr, stat: &Metadata) -> bool {
        match self.tree.note.backing {
            Backing::Overlay { .. } => false,
            // Neither a FIFO nor the like is copied.
            Backing::Copy { .. }
                if pair.after.is_some()
                    && (pair.touched.or(pair.moved) == Touched::No
                        || !matches!(kind(stat), Kind::File | Kind::Directory | Kind::Link)) =>
            {
                true
            }
            Backing::Copy { .. } => {
                changed(stat) >= self.tree.note.since
                    && born(at, name).is_some_and(|born| born >= self.tree.note.since)
            }
        }
    }

    fn compare(
        &mut self,
        pair: &Pair,
        name: &OsStr,
        was: Option<At<'_>>,
        is: Option<(At<'_>, &OverlayEntry)>,
    ) {
        let path = pair.path.join(name);
        if was.is_none() && is.is_none() {
            return;
        }
        if is.is_none() && self.tree.is_hidden(&path) {
            self.kept.push(path);
            return;
        }
        let touched = is.map_or(Touched::Yes, |(at, _)| touched(self.tree.note.backing, at.stat));
        let moved = pair.moved.or(touched);
        let is_directory = |at: At<'_>| kind(at.stat) == Kind::Directory;
        let what = match (was, is) {
            // A copy that was not changed, and neither were the directories above it: the run did nothing here.
            (was, Some((at, _)))
                if moved == Touched::No
                    && self.is_copy()
                    && !(is_directory(at) && was.is_some_and(is_directory)) =>
            {
                return;
            }
            (None, Some(_)) => Some(What::Created),
            (Some(_), None) => Some(What::Deleted),
            (Some(was), Some((at, _))) => difference(was, at),
            (None, None) => None,
        };
        let before_is_directory = was.is_some_and(is_directory);
        let node = is.and_then(|(_, entry)| entry.node.clone());
        let goes_on = before_is_directory || node.is_some();
        let untouched =
            before_is_directory && node.as_ref().is_some_and(|node| node.is_untouched(&path));
        if untouched {
            return;
        }
        let copies = match (what.is_some(), goes_on) {
            (listed, true) => WAITING + if listed { LISTED + 1 } else { 0 },
            (true, false) => LISTED,
            (false, false) => return,
        };
        if !self.room.take(&path, copies) {
            self.cut = true;
            return;
        }
        let out_of_reach = OutOfReach::of(&path, pair.depth + 1).filter(|_| goes_on);
        if let Some(out_of_reach) = out_of_reach {
            self.hold_directory(&path, was, is, what, out_of_reach.why());
            return;
        }
        if let Some(what) = what {
            if goes_on {
                self.directories.insert(path.clone(), self.changes.len());
            }
            let change = change(&path, what, was, is);
            let sides = [&change.before, &change.after].into_iter().flatten();
            let targets = sides.filter_map(|side| side.target.as_ref());
            if !self.room.take_bytes(targets.map(|target| target.as_bytes().len()).sum()) {
                self.cut = true;
                return;
            }
            self.changes.push(change);
        }
        if goes_on {
            let depth = pair.depth + 1;
            self.pending.push(Pair {
                path,
                depth,
                before: before_is_directory,
                after: node,
                touched,
                moved,
            });
        }
    }

    fn is_copy(&self) -> bool {
        matches!(self.tree.note.backing, Backing::Copy { .. })
    }

    fn hold_directory(
        &mut self,
        path: &Path,
        was: Option<At<'_>>,
        is: Option<(At<'_>, &OverlayEntry)>,
        what: Option<What>,
        why: String,
    ) {
        let mut change = change(path, what.unwrap_or(What::Modified), was, is);
        change.withheld = Some(Withheld::new(why, HowFar::Always));
        self.changes.push(change);
    }

    /// The directory itself may be in the list already.
    fn unreadable(&mut self, pair: &Pair) {
        let why = "its mode keeps it from being read".to_owned();
        let held = Some(Withheld::new(why, HowFar::Always));
        let path = OsText::from(pair.path.clone());
        let known = self.directories.get(&pair.path).and_then(|&at| self.changes.get_mut(at));
        if let Some(change) = known {
            change.withheld = held;
            return;
        }
        let facts = || Facts { kind: Kind::Directory, mode: 0, size: 0, target: None };
        self.changes.push(Change {
            place: Some(ContentPlace::InUpper(path.clone())),
            judged: false,
            path,
            what: What::Modified,
            before: pair.before.then(facts),
            after: pair.after.as_ref().map(|_| facts()),
            autorun: None,
            withheld: held,
        });
    }
}
